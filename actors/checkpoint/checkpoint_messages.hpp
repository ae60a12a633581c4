// The messages about checkpoints: registration, saves, restores, care of a pool. Sent by the
// client; they hold descriptors only.
#pragma once

#include <millrace/actors/load_messages.hpp>
#include <millrace/actors/service.hpp>
#include <millrace/actors/watch_messages.hpp>
#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/checkpoint.hpp>
#include <millrace/core/checkpoint_receipts.hpp>
#include <millrace/core/repack_report.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::actors {

/// Registers a shard, once per job. `source` covers all of its memory, readable.
struct enroll_request {
  shard_spec shard;
  bulk_handle source; // all tensors, one after the other, in layout order
  when_saving busy = when_saving::wait;
  std::uint32_t timeout_ms = 0;
  asker from = {};
};
MILLRACE_INSPECT(enroll_request, x.shard, x.source, x.busy, x.timeout_ms)

/// Ends a registration in order. If the process goes first, the registration ends by itself, as not
/// finished.
struct leave_request {
  std::uint64_t registration = 0;
  bool finished = false; // the job is over: `repack` may keep one version only
  asker from = {};
};
MILLRACE_INSPECT(leave_request, x.registration, x.finished)

/// Saves the registered memory as `step`. Answered when the trainer may change its tensors
/// (*staged*).
struct save_request {
  std::uint64_t registration = 0;
  std::uint64_t step = 0;
  bool snapshot = false; // through staging memory first, so that `staged` comes early
  std::uint32_t timeout_ms = 0;
  bool went_back = false; // as `run_min` for older builds: the first save after a restore
  // The first run in which the save may begin: after a restore, the one after the last in which the
  // rank took part before. 0: any, or the asker is of an older build.
  std::uint64_t run_min = 0;
  bulk_handle extra; // the user's bytes, readable until the version is done; names none: no bytes
  asker from = {};
};
MILLRACE_INSPECT(
  save_request, x.registration, x.step, x.snapshot, x.timeout_ms, x.went_back, x.run_min, x.extra)

/// Waits until the step's version is *done*: persistent, with checksums. Sent right after its
/// `save_request`.
struct durable_request {
  std::uint64_t registration = 0;
  std::uint64_t step = 0;
  std::uint32_t timeout_ms = 0;
  asker from = {};
};
MILLRACE_INSPECT(durable_request, x.registration, x.step, x.timeout_ms)

/// Writes a version, or some of its tensors, into the caller's memory. Any rank may ask for any
/// shard.
struct restore_request {
  std::string model;
  std::uint32_t rank = 0;
  bool latest = true; // the newest complete step
  std::uint64_t step = 0;
  std::vector<selection> selections; // as in `load_request`
  bulk_handle target;
  std::uint32_t timeout_ms = 0;
  // Asks for the user's bytes instead: `selections` has them as one tensor, see
  // `extra_tensor`. A client asks when a receipt says that there are some.
  bool extra = false;
  // Picks one of several versions of the step. 0: the one that a restore picks.
  std::uint64_t saved_at_ns = 0;
  asker from = {};
};
MILLRACE_INSPECT(
  restore_request, x.model, x.rank, x.latest, x.step, x.selections, x.target, x.timeout_ms, x.extra,
  x.saved_at_ns)

struct checkpoint_list {
  std::vector<checkpoint_summary> models;
  // Models follow the last of these. Older services do not send this field and may have more.
  bool more = true;

  friend bool operator==(const checkpoint_list&, const checkpoint_list&) = default;
};
MILLRACE_INSPECT(checkpoint_list, x.models, x.more)

struct list_checkpoints_request {
  std::string prefix;
  std::string after;
  std::uint32_t count_max = 1000;
  std::uint32_t timeout_ms = 0; // how long the client waits; it does not travel
};
MILLRACE_INSPECT(list_checkpoints_request, x.prefix, x.after, x.count_max)

struct describe_shard_request {
  std::string model;
  std::uint32_t rank = 0;
  std::uint32_t timeout_ms = 0; // as above
};
MILLRACE_INSPECT(describe_shard_request, x.model, x.rank)

/// Reads a stored version again and compares its checksums.
struct verify_request {
  std::string model;
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  std::uint32_t timeout_ms = 0;
  // Picks one of several versions of the step. 0: the one that a restore picks.
  std::uint64_t saved_at_ns = 0;
  asker from = {};
};
MILLRACE_INSPECT(verify_request, x.model, x.rank, x.step, x.timeout_ms, x.saved_at_ns)

struct erase_checkpoint_request {
  std::string model;
  bool one_step = false;
  std::uint64_t step = 0;
  std::uint32_t timeout_ms = 0; // as above
};
MILLRACE_INSPECT(erase_checkpoint_request, x.model, x.one_step, x.step)

struct repack_request {
  std::uint32_t timeout_ms = 0;
  /// The part of `timeout_ms` after which the repack stops where it is, so that the answer comes in
  /// time. 0: all of it.
  std::uint32_t work_ms = 0;
};
MILLRACE_INSPECT(repack_request, x.timeout_ms, x.work_ms)

/// The checkpoints of a provider.
struct checkpoint_service
  : service<
      "checkpoints", 64,
      // Registers a shard once per job and reserves its slots.
      // Errors: no_space, busy (another job is attached), invalid_argument (another layout is
      // stored).
      method<enroll_request, enroll_receipt>,
      // Ends a registration in order. Saves that still run are given up.
      method<leave_request, done_reply>,
      // Pulls the registered memory into a slot. The answer is `staged`.
      // Errors: not_found (no such registration), busy (also when no slot could be filled for
      //         `checkpoints.slot_wait`), invalid_argument (more bytes of the user than
      //         `checkpoints.extra_max`), no_space (for these), permission_denied, peer_lost,
      //         deadline_exceeded.
      method<save_request, save_receipt>,
      // Waits until the same save is *done*. Fails with the save's error.
      method<durable_request, save_receipt>,
      // Pushes a version, or some of its tensors, into the caller's memory.
      // Errors: those of `load_request`.
      method<restore_request, load_reply>, method<list_checkpoints_request, checkpoint_list>,
      method<describe_shard_request, shard_spec>,
      // Reads a stored version again and names the tensors whose checksums do not match.
      method<verify_request, verify_receipt>,
      // Errors: not_found; busy while a job is attached.
      method<erase_checkpoint_request, done_reply>,
      // Errors: busy while another repack runs.
      method<repack_request, repack_report>,
      // Parks a watch of a model's complete steps. One that may have become complete counts, too.
      // Errors: busy (the share of `limits.watches_max`).
      method<watch_request, done_reply>, method<unwatch_request, done_reply>,
      method<watch_news_request, watch_news>> {};

} // namespace millrace::actors
