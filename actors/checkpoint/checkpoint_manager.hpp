// The actor of a provider that keeps checkpoints: registrations, and all that belongs to none.
// Asked by sessions and local clients; drives one checkpoint store.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_puller.hpp>
#include <millrace/actors/checkpoint/repacker.hpp>
#include <millrace/actors/provider_status.hpp>

#include <functional>
#include <memory>
#include <string>

namespace millrace::actors {

/// The messages that the manager answers in its own process.
using local_checkpoint_manager = actor_of<checkpoint_service>::extend<
  // Answers with the part of the status that concerns checkpoints.
  caf::replies_to<provider_status_request>::with<provider_status>>;

/// The bounds of one provider's checkpoints, set by the configuration. Restores and verifications
/// have those of loads.
struct checkpoint_limits : operation_limits, config::checkpoint_settings {};

struct checkpoint_manager_deps {
  std::string name; // the provider's name
  std::string kind;
  std::string group;
  std::shared_ptr<storage::checkpoint_store> store;
  std::shared_ptr<transport::fabric> fabric;
  snapshot_staging snapshots;
  checkpoint_limits limits;
  std::shared_ptr<staging_lender> staging = nullptr; // for windows that are not in place
  repack_policy repack;
  /// The bytes of one page of models, unless one model alone has more: half of the bound of a
  /// message.
  std::uint64_t page_bytes_max = 1u << 20;
  /// The least number of slots for each shard.
  std::uint32_t keep_min = 2;
  /// Called when a version is done, on any thread. Must not block. May be empty.
  std::function<void(const save_receipt&)> saved;
  /// Returns the counts of flushed steps. Empty: nothing is flushed.
  std::function<flush_counters()> flushed;
  std::shared_ptr<void> in_use = nullptr; // see `operation_context`
};

local_checkpoint_manager spawn_checkpoint_manager(
  caf::actor_system& system, checkpoint_manager_deps deps);

} // namespace millrace::actors
