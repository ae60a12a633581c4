// The actor of a provider that keeps checkpoints: registrations, and whatever concerns no single one of them.
// Asked by sessions and local clients; drives one checkpoint store.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_puller.hpp>
#include <millrace/actors/checkpoint/repacker.hpp>
#include <millrace/actors/provider_status.hpp>

#include <functional>
#include <memory>
#include <string>

namespace millrace::actors {

/// What it answers in its own process.
using local_checkpoint_manager = actor_of<checkpoint_service>::extend<
  caf::reacts_to<peer_gone>,
  // What concerns checkpoints only.
  caf::replies_to<provider_status_request>::with<provider_status>>;

/// The bounds of one provider's checkpoints. The configuration's `checkpoints` and `limits` sections set them.
struct checkpoint_limits : operation_limits {
  std::uint32_t registrations_max = 1024; // jobs' shards at a time
  std::uint32_t saves_queued_max = 4;     // of one shard, behind the one in flight
  std::uint32_t restores_max = 256;       // in flight, verifications too; more wait
  std::uint32_t queued_max = 1024;        // restores waiting; more are refused with `busy`
};

struct checkpoint_manager_deps {
  std::string name; // the provider's
  std::string kind;
  std::string group;
  std::shared_ptr<storage::checkpoint_store> store;
  std::shared_ptr<transport::fabric> fabric;
  std::shared_ptr<staging_blocks> blocks; // may be null: then there are no snapshots
  checkpoint_limits limits;
  repack_policy repack;
  /// Of a page of models, unless one alone has more: half of what a message may have.
  std::uint64_t page_bytes_max = 1u << 20;
  /// Slots every shard is given at least.
  std::uint32_t keep_min = 2;
  /// A version is done; on any thread, must not block. May be empty.
  std::function<void(const save_receipt&)> saved;
  /// What became of those that are copied on. Empty: none are.
  std::function<storage::flush::flush_counters()> flushed;
};

local_checkpoint_manager spawn_checkpoint_manager(
  caf::actor_system& system, checkpoint_manager_deps deps);

} // namespace millrace::actors
