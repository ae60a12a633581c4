// The checkpointer of one shard: register once, save by step, fence, restore in place.
// Training loops call it; `client::checkpointer` makes it.
#pragma once

#include <millrace/core/checkpoint.hpp>
#include <millrace/core/checkpoint_receipts.hpp>
#include <millrace/core/device_stream.hpp>
#include <millrace/core/future.hpp>
#include <millrace/core/receipts.hpp>
#include <millrace/core/status.hpp>
#include <millrace/core/tensor_view.hpp>
#include <millrace/runtime/client/load_target.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

/// The largest step. Files and other languages have signed numbers.
inline constexpr std::uint64_t step_max = std::numeric_limits<std::int64_t>::max();

namespace runtime {
class shard_state;
}

struct checkpoint_options {
  std::string model;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  /// Versions reserved for each shard, at least 2. A rank can be `keep - 1` steps ahead of the
  /// slowest one before its saves wait.
  std::uint32_t keep = 2;
  /// Shown in listings, in the user's own words: {"tensor", "1/4"}.
  std::vector<std::pair<std::string, std::string>> axes = {};
  std::vector<std::pair<std::string, std::string>> metadata = {};
  /// The choice for a save that comes while another save is in flight, or for which there is no
  /// slot yet, see `checkpointer`.
  when_saving busy = when_saving::wait;
  /// The group of providers; empty: any provider that keeps checkpoints.
  std::string group = {};
  /// The timeout of each operation; 0: the client's request timeout.
  std::chrono::milliseconds timeout{0};
  /// Identifies one run of the job. Give every rank the same value, and a new one after a restart:
  /// `job::life` is one where the launcher names runs. 0: each rank draws its own at random.
  std::uint64_t life = 0;
  /// The places of tensors that are parts of larger ones, so that a job with other ranks finds
  /// them, see `checkpoints::load_global`. A tensor without a place is whole, and so are replicas.
  /// Shards that are stored with places keep them: those given must be the same. None: as stored.
  std::vector<tensor_place> places = {};
};

/// Chooses how a save copies the tensors.
enum class save_mode {
  /// The provider pulls directly from the tensors. They must not change before `staged` is ready.
  direct,
  /// The tensors are copied to staging memory first. `staged` is ready after that copy.
  snapshot,
};

/// A save in progress.
struct pending_save {
  std::uint64_t step = 0;
  /// Ready when the trainer may change its tensors.
  future<save_receipt> staged;
  /// Ready when the version is done: it survives `kill -9`, and power loss where the medium does.
  future<save_receipt> durable;
};

/// One registered shard of one training job. Copies share it; the last copy closes it.
///
/// A failed save is reported once, by the next call that can report it. `fence` and `close` return
/// the failure. A `save` that comes before them does not begin; its futures fail with that failure.
/// Destroying the last copy without `close` waits for the save in flight, as `close` does, and logs
/// a failure. A lost connection ends the registration; the next save registers again.
///
/// When every rank has seen `durable` for step s, `restore()` gives a step >= s, whatever dies
/// afterwards. All ranks must have saved s in one run of the job. Going back to an older step, or
/// replacing a rank, begins a new run; the promise then covers the steps of that run. A save that
/// would overwrite this rank's part of a step that other ranks may still complete waits for them.
/// So save the same steps on every rank. docs/decisions/013-steps-in-lockstep.md has the proof. A
/// job registers at the provider with the newest steps. While a provider that may have newer ones
/// cannot be asked, registering fails with `unavailable`, which names it, see `checkpoints`.
/// Threads: any. Calls that name a step must be made in the order of the steps.
/// Source:  Portus, sections III-B, III-C, III-E, III-F.
class checkpointer {
public:
  explicit checkpointer(const std::shared_ptr<runtime::shard_state>& s);
  checkpointer(const checkpointer& other);
  checkpointer(checkpointer&&) noexcept = default;
  checkpointer& operator=(checkpointer other) noexcept;
  ~checkpointer() = default;

  /// Begins to save the registered tensors as `step` and returns at once. The provider's threads
  /// and the runtime's threads in this process copy the bytes; the caller's thread does not.
  ///
  /// `extra` are bytes of the user that belong to this rank's version: an epoch, a random state, a
  /// scheduler. They may differ in size from save to save. The call copies them. They become
  /// durable together with the tensors, or not at all, and `restore` returns them.
  ///
  /// `after` is a stream of a device on which the tensors are computed. The save reads them when
  /// the device has done all work that was in the stream before this call. The provider is asked
  /// then, and the save's deadline covers the wait. Without a stream the tensors must be complete
  /// when the call is made. docs/decisions/028-streams.md has the reasons.
  /// Errors:  `busy` with `when_saving::refuse`, or naming the ranks that lag behind after
  ///          `checkpoints.slot_wait` of the provider; `invalid_argument` for a step above
  ///          `step_max`, or for more bytes in `extra` than `checkpoints.extra_max` of the
  ///          provider; `unsupported` for any from a provider of an older build; `no_space`;
  ///          `peer_lost`; the failure of an earlier save, once.
  ///          For `after`: `unsupported` where this build or the driver has no such streams,
  ///          `invalid_argument` for a stream that cannot be used, `deadline_exceeded`.
  ///          After a failure no thread reads the tensors any more.
  pending_save save(
    std::uint64_t step, save_mode mode = save_mode::direct, std::span<const std::byte> extra = {},
    std::optional<device_stream> after = {});

  /// Waits until the tensors may be changed. Call it before each update. It returns at once unless
  /// a pull still runs. Then threads with the priority of the program copy the rest.
  /// Errors:  the failure of the save that it waited for, or of an earlier save not yet reported;
  ///          `deadline_exceeded`.
  [[nodiscard]] status fence();
  /// Lets the work that is put into the stream after this call wait until the tensors may be
  /// changed. The calling thread does not wait, unless four streams of the process wait already.
  /// It must not destroy the stream before, or wait for the whole device.
  /// Errors:  as those of `save` for `after`; the failure of an earlier save not yet reported. That
  ///          of the save which the stream waits for is reported by the next call.
  [[nodiscard]] status fence(const device_stream& stream);
  /// Becomes ready when the tensors may be changed: at once, unless a pull still runs. Every save
  /// ends by its own deadline, so this does, too.
  /// Errors:  as `fence`.
  future<void> fence_async();

  /// Takes the addresses and strides of tensors that the program has moved. The layout must be that
  /// of the registration: the same names, dtypes and shapes, in the same order. The provider is not
  /// asked: the registration, its slots and its run stay. Saves and restores that begin afterwards
  /// use the new memory; nothing reads the old memory any more.
  /// Cost:    if nothing has moved, a comparison of the views.
  /// Errors:  `invalid_argument` naming the first tensor whose description differs; `busy` while a
  ///          save still reads the tensors, see `fence`, and, between the memory of hosts and GPUs,
  ///          until it is durable. After an error the former tensors stay registered.
  [[nodiscard]] status rebind(const std::vector<tensor_view>& tensors);

  /// Writes a version into the registered tensors in place. Without a step it takes the newest step
  /// that all shards have. The receipt's `extra` are the bytes that `save` was given with it.
  /// Errors:  `busy` while a save still reads the tensors, or when the version was replaced before
  ///          its `extra` was read; `not_found` naming the available steps; `invalid_argument` for
  ///          a dtype or shape that differs, before any byte moves; `corrupt_data` when a checksum
  ///          does not match, also one of `extra`.
  future<load_receipt> restore(std::optional<std::uint64_t> step = {});

  /// Writes a version of any shard of the model into any memory, and returns its `extra`. A job
  /// with another world size must use another model name; it reads the old shards with
  /// `checkpoints::load_global`.
  /// Errors:  `not_found` for an unknown rank or step; `invalid_argument` and `corrupt_data` as for
  ///          `restore`.
  future<load_receipt> restore_shard(
    std::uint32_t rank, std::vector<tensor_view> targets, std::optional<std::uint64_t> step = {});

  /// Does what `restore_shard` does, for tensors, rows and boxes of them.
  /// Errors:  as `restore_shard`; those of `repository::load` for boxes.
  future<load_receipt> restore_boxes(
    std::uint32_t rank, std::vector<load_target> targets, std::optional<std::uint64_t> step = {});

  /// Returns the model's shards, versions and complete steps as they are now.
  /// Errors:  `not_found` when the checkpoints were erased; `peer_lost`; `unavailable`;
  ///          `deadline_exceeded`.
  future<checkpoint_summary> describe() const;

  /// Returns what the provider had when this job registered. `resumed` of the result is true if
  /// the provider had versions of an earlier job.
  const enroll_receipt& registration() const noexcept;

  /// Waits for the save in flight and ends the registration. `finished` says that the job is over:
  /// a repack may then reclaim all but its last version.
  /// Errors:  the failure of a save not yet reported.
  [[nodiscard]] status close(bool finished = false);
  /// Does what `close` does, and returns at once. No new save begins after the call. The tensors
  /// must stay until the future is ready.
  /// Errors:  as `close`.
  future<void> close_async(bool finished = false);

private:
  struct attachment; // the last one to be destroyed closes the checkpointer
  struct offer;
  runtime::shard_state& state() const noexcept;

  std::shared_ptr<offer> offered_;
  std::shared_ptr<attachment> attached_; // null in the copy that a future holds, see `offer`
};

} // namespace millrace
