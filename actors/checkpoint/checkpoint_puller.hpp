// The actor of one registered shard, which runs one save at a time. Spawned and asked by the
// checkpoint manager.
#pragma once

#include <millrace/actors/checkpoint/save_operation.hpp>
#include <millrace/actors/vocabulary.hpp>

#include <atomic>
#include <memory>
#include <string>

namespace millrace::actors {

/// The counters that all pullers of a provider share.
struct save_counters {
  std::atomic<std::uint64_t> in_flight = 0;
  std::atomic<std::uint64_t> queued = 0;
  std::atomic<std::uint64_t> saves = 0;
  std::atomic<std::uint64_t> failed = 0;
  std::atomic<std::uint64_t> saved_bytes = 0;
};

/// Says that the job is gone or over. Saves under way are given up with `why`, and the puller
/// leaves the shard.
struct end_registration {
  bool finished = false;
  status why;
};

/// Private to the manager, which checks who may ask.
using checkpoint_puller_actor = caf::typed_actor<
  caf::replies_to<save_request>::with<save_receipt>,
  caf::replies_to<durable_request>::with<save_receipt>,
  // Answered when the store has been told. The actor then ends.
  caf::replies_to<end_registration>::with<done_reply>>;

struct checkpoint_puller_deps {
  std::string provider;
  std::shared_ptr<transport::fabric> fabric;
  operation_limits bounds;
  std::shared_ptr<staging_lender> staging; // for windows that are not in place
  std::shared_ptr<storage::checkpoint_store> store;
  snapshot_staging snapshots;
  shard_spec shard;
  asker owner; // the process whose memory it is
  bulk_handle source;
  when_saving busy = when_saving::wait;
  std::uint32_t queued_max = 4; // saves that wait behind the one in flight
  // How long the save in flight waits for a slot.
  std::uint64_t slot_wait_ms = config::checkpoint_settings{}.slot_wait_ms;
  std::uint64_t extra_bytes_max = config::checkpoint_settings{}.extra_bytes_max;
  std::shared_ptr<save_counters> counters;
  std::function<void(const save_receipt&)> saved; // called when a version is done; may be empty
  /// Called when a step may have become complete. May be empty.
  std::function<void(std::uint64_t step)> published;
  completion<void> left; // called when the store has been told that the job is gone
};

checkpoint_puller_actor spawn_checkpoint_puller(
  caf::actor_system& system, checkpoint_puller_deps deps);

} // namespace millrace::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(millrace::actors::end_registration)
