// The messages about checkpoints: registration, saves, restores, care of a pool. Sent by the
// client; they hold descriptors only.
#pragma once

#include <millrace/actors/load_messages.hpp>
#include <millrace/actors/service.hpp>
#include <millrace/actors/watch_messages.hpp>
#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/checkpoint.hpp>
#include <millrace/storage/repack_report.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::actors {

/// What happens to a save while another save of the shard is in flight, or while no slot can be
/// filled: every one is being read, or has a version that other ranks have yet to complete.
enum class when_saving : std::uint8_t { wait = 0, refuse = 1 };

/// Registers a shard, once per job. `source` covers all of its memory, readable.
struct enroll_request {
  shard_spec shard;
  bulk_handle source; // all tensors, one after the other, in layout order
  when_saving busy = when_saving::wait;
  std::uint32_t timeout_ms = 0;
  asker from = {};
};
MILLRACE_INSPECT(enroll_request, x.shard, x.source, x.busy, x.timeout_ms)

struct enroll_receipt {
  std::uint64_t registration = 0; // its number in later requests; cannot be guessed
  std::string provider;
  bool durable = false;
  bool resumed = false; // the shard was known, and its versions are there
  checkpoint_summary model;
  std::uint64_t run = 0; // in which the shard takes part
  // The most bytes of the user that a save may bring (`checkpoints.extra_max`); 0 from older
  // services, which keep none.
  std::uint64_t extra_bytes_max = 0;

  friend bool operator==(const enroll_receipt&, const enroll_receipt&) = default;
};
MILLRACE_INSPECT(
  enroll_receipt, x.registration, x.provider, x.durable, x.resumed, x.model, x.run,
  x.extra_bytes_max)

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

/// Microseconds that a save spent in each stage: the paper's figure 13.
struct save_times {
  std::uint64_t queued_us = 0;  // waiting behind another save
  std::uint64_t begin_us = 0;   // until a slot was picked and marked active
  std::uint64_t pull_us = 0;    // while the bytes were pulled
  std::uint64_t persist_us = 0; // until the version was written back and marked done
  // The part of `begin_us` while no slot could be filled: other ranks had yet to complete a step,
  // or versions were being read. Older services do not send this field.
  std::uint64_t slot_us = 0;

  friend bool operator==(const save_times&, const save_times&) = default;
};
MILLRACE_INSPECT(save_times, x.queued_us, x.begin_us, x.pull_us, x.persist_us, x.slot_us)

struct save_receipt {
  std::string model;
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  std::uint64_t size_bytes = 0;
  std::string provider;
  // False in the answer to `save_request`, and if the provider's medium is not durable.
  bool durable = false;
  bool complete = false; // all shards of the step are done now
  std::string driver;    // the driver that moved the bytes
  std::string path;      // "direct" to the slot, or "staged"
  save_times times;
  std::uint64_t run = 0; // of the job, in which the version is saved

  friend bool operator==(const save_receipt&, const save_receipt&) = default;
};
MILLRACE_INSPECT(
  save_receipt, x.model, x.rank, x.step, x.size_bytes, x.provider, x.durable, x.complete, x.driver,
  x.path, x.times, x.run)

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

struct verify_receipt {
  std::uint64_t size_bytes = 0;
  // Tensors whose checksums do not match, and "the user's bytes".
  std::vector<std::string> corrupt;

  friend bool operator==(const verify_receipt&, const verify_receipt&) = default;
};
MILLRACE_INSPECT(verify_receipt, x.size_bytes, x.corrupt)

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

using repack_receipt = storage::repack_report;

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
      method<restore_request, load_receipt>, method<list_checkpoints_request, checkpoint_list>,
      method<describe_shard_request, shard_spec>,
      // Reads a stored version again and names the tensors whose checksums do not match.
      method<verify_request, verify_receipt>,
      // Errors: not_found; busy while a job is attached.
      method<erase_checkpoint_request, done_reply>,
      // Errors: busy while another repack runs.
      method<repack_request, repack_receipt>,
      // Parks a watch of a model's complete steps. One that may have become complete counts, too.
      // Errors: busy (the share of `limits.watches_max`).
      method<watch_request, done_reply>, method<unwatch_request, done_reply>,
      method<watch_news_request, watch_news>> {};

} // namespace millrace::actors
