// The actor that arbitrates a node's staging memory. Called by lenders that are short of budget.
#pragma once

#include <millrace/actors/staging/staging_lender.hpp>
#include <millrace/actors/vocabulary.hpp>

#include <memory>
#include <vector>

namespace millrace::actors {

/// A lender is short, or has free what was called back.
struct staging_call {
  bool timed = false; // sent by the manager itself
};

using staging_manager_actor = caf::typed_actor<caf::reacts_to<staging_call>>;

/// Spawns the manager of these memories. What lenders hold is kept in the memories, and so are the
/// requests that wait, so a manager that is spawned after another one goes on with them. A handler
/// that throws ends the manager, and its monitors get the reason.
staging_manager_actor spawn_staging_manager(
  caf::actor_system& system, std::vector<std::shared_ptr<staging_memory>> memories,
  const staging_rules& rules);

} // namespace millrace::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(millrace::actors::staging_call)
