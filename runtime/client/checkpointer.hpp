// Checkpoints as a training loop sees them: register once, save by step, fence, restore in place.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/core/future.hpp>
#include <millrace/core/tensor_view.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

namespace runtime {
class shard_state;
}

using save_receipt = actors::save_receipt;
using actors::when_saving;

struct checkpoint_options {
  std::string model;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t keep = 2; // versions reserved for each shard, at least 2
  std::vector<std::pair<std::string, std::string>> axes =
    {}; // {"tensor", "1/4"}: in the user's words
  std::vector<std::pair<std::string, std::string>> metadata = {};
  when_saving busy = when_saving::wait; // a save while another one is in flight
  std::string group = {};               // of providers; empty: any that keeps checkpoints
  std::chrono::milliseconds timeout{0}; // of each operation; 0: the client's request timeout
  // Names this life of the job, where all its ranks know one name for it that the next life does not have; 0: the rank
  // has one of its own.
  std::uint64_t life = 0;
};

/// How a save goes about it.
enum class save_mode {
  direct,   // pulled straight from the tensors: they must not change before `staged`
  snapshot, // through staging memory first: `staged` comes as early as memory can be copied
};

/// A save under way.
struct pending_save {
  std::uint64_t step = 0;
  future<save_receipt> staged; // the trainer may change its tensors
  future<save_receipt>
    durable; // the version is done: it survives `kill -9` and power loss of a durable medium
};

/// One registered shard of one training job. Copies share it; the last one closes it.
///
/// A save that failed is raised by the next call that can say so, once: `fence` and `close` return it; a `save` that
/// comes first is not begun and fails with it. Destroying the last copy without `close` drains as `close` does, and
/// logs what failed. A lost connection ends the registration; the next save registers again by itself.
/// Threads: any, but calls that name a step in the order of the steps.
/// Source: Portus, sections III-B, III-C, III-E, III-F.
class checkpointer {
public:
  explicit checkpointer(const std::shared_ptr<runtime::shard_state>& s);
  checkpointer(const checkpointer& other);
  checkpointer(checkpointer&&) noexcept = default;
  checkpointer& operator=(checkpointer other) noexcept;
  ~checkpointer() = default;

  /// Begins to save the registered tensors as `step`; returns at once. The provider pulls the bytes with its own
  /// threads and those of this process's runtime, never the caller's.
  /// Errors: `busy` with `when_saving::refuse`; `no_space`, `peer_lost`; an earlier save's, once. Once it has failed
  /// nobody reads the tensors any more.
  pending_save save(std::uint64_t step, save_mode mode = save_mode::direct);

  /// Waits until the tensors may be changed: at once, unless a pull still runs. Call it before the update.
  /// Errors: those of the save waited for, or of an earlier one not yet raised; `deadline_exceeded`.
  [[nodiscard]] status fence();

  /// Writes a version into the registered tensors in place; without a step the newest that all shards have.
  /// Errors: `not_found` naming the steps there are; `invalid_argument` for a dtype or shape that differs, before
  /// any byte moves; `corrupt_data` when a checksum does not match.
  future<actors::load_receipt> restore(std::optional<std::uint64_t> step = {});

  /// The same for any shard of the model, into any memory. A job of another world size takes another name and reads the
  /// shards of the former one with `checkpoints::load`.
  future<actors::load_receipt> restore_shard(
    std::uint32_t rank, std::vector<tensor_view> targets, std::optional<std::uint64_t> step = {});

  /// The model's shards, versions and complete steps now.
  future<checkpoint_summary> describe() const;

  /// What was there when this job registered; `resumed()` if a former job's versions are.
  const actors::enroll_receipt& registration() const noexcept;

  /// Waits for the save in flight and ends the registration. `finished`: the job is over; a repack may reclaim
  /// all but its last version. Errors: of a save not yet raised.
  [[nodiscard]] status close(bool finished = false);

private:
  struct attachment; // the last one closes
  struct offer;
  runtime::shard_state& state() const noexcept;

  std::shared_ptr<offer> offered_;
  std::shared_ptr<attachment> attached_; // null in what a future keeps: see `offer`
};

} // namespace millrace
