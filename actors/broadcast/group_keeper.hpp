// The actor of a node's groups: processes join and leave them here, and it makes the rings through
// which they broadcast. Asked by sessions and local clients.
#pragma once

#include <millrace/actors/broadcast/group_messages.hpp>
#include <millrace/actors/broadcast/group_options.hpp>
#include <millrace/actors/operation.hpp>
#include <millrace/actors/vocabulary.hpp>
#include <millrace/core/fair_shares.hpp>

#include <memory>
#include <string>

namespace millrace::actors {

using group_keeper_actor = actor_of<group_service>;

/// The target that requests to a node's group keeper name. No provider has such a name.
inline constexpr auto group_keeper_of_node = "/groups";

struct group_keeper_deps {
  std::string name; // for errors: "n0/groups"
  group_options options;
  std::shared_ptr<lent_places> rings; // each is one place
  std::shared_ptr<transport::fabric> fabric;
  operation_limits limits;
};

/// Makes the places of so many rings as the options have memory for.
std::shared_ptr<lent_places> places_for_rings(const group_options& options);

/// Makes the actor. A member belongs to the connection through which it joined, and leaves with it.
///
/// After a failure of the actor there are no groups: members get `not_found`, and join anew.
group_keeper_actor spawn_group_keeper(caf::actor_system& system, group_keeper_deps deps);

} // namespace millrace::actors
