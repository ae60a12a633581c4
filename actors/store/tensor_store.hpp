// The actor of a provider's models. Asked by sessions and local clients; drives one bucket and the
// fabric.
#pragma once

#include <millrace/actors/operation.hpp>
#include <millrace/actors/store/placement_keeper.hpp>
#include <millrace/actors/store/store_messages.hpp>
#include <millrace/actors/vocabulary.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/transport/fabric.hpp>

#include <memory>
#include <string>

namespace millrace::actors {

/// Answers the messages of `store_service`.
using tensor_store_actor = actor_of<store_service>;

struct tensor_store_deps {
  std::string name; // the provider's name
  std::string group;
  std::shared_ptr<storage::bucket> bucket;
  std::shared_ptr<transport::fabric> fabric;
  operation_limits limits;
  std::shared_ptr<staging_lender> staging = nullptr; // for windows that are not in place
  /// What the bucket keeps, which the actor changes. Null: the provider is alone in its group.
  std::shared_ptr<kept_placement> placement = nullptr;
  std::shared_ptr<void> in_use = nullptr; // see `operation_context`
};

tensor_store_actor spawn_tensor_store(caf::actor_system& system, tensor_store_deps deps);

} // namespace millrace::actors
