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

/// The bounds of one provider, set by the configuration's section `limits`.
struct tensor_store_limits : operation_limits {
  std::uint32_t stores_max = 64;   // in flight; more wait
  std::uint32_t loads_max = 256;   // in flight; more wait
  std::uint32_t queued_max = 1024; // waiting, of each kind; more are refused with `busy`
};

struct tensor_store_deps {
  std::string name; // the provider's name
  std::string group;
  std::shared_ptr<storage::bucket> bucket;
  std::shared_ptr<transport::fabric> fabric;
  tensor_store_limits limits;
  std::shared_ptr<staging_lender> staging = nullptr; // for windows that are not in place
  /// What the bucket keeps, which the actor changes. Null: the provider is alone in its group.
  std::shared_ptr<kept_placement> placement = nullptr;
  std::shared_ptr<void> in_use = nullptr; // see `operation_context`
};

tensor_store_actor spawn_tensor_store(caf::actor_system& system, tensor_store_deps deps);

} // namespace millrace::actors
