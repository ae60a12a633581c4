// The checkpoint store: registered shards with a fixed number of slots each. Called by the
// checkpoint actors.
#pragma once

#include <millrace/core/checkpoint.hpp>
#include <millrace/core/progress.hpp>
#include <millrace/core/repack_report.hpp>
#include <millrace/storage/bucket.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace::storage {

/// The capabilities of a kind of store, as data.
struct checkpoint_capabilities {
  bool durable = false;  // a version that is done survives `kill -9` and power loss
  bool in_place = false; // slots are mapped: one window holds a whole shard at its final location
  /// Writing back cache lines makes bytes persistent, so that the mover can do it.
  bool cpu_flush = false;
};

/// The outcome of enrolling a shard.
struct enrolled_shard {
  checkpoint_summary model; // the model with all its shards, after the call
  bool resumed = false;     // the shard existed; its versions stay
  std::uint64_t run = 0;    // in which it takes part
};

/// What to save.
struct save_spec {
  std::string model;
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  /// The first run in which the save may begin. A rank that has restored a version names the run
  /// after the last one in which it took part. 0: any.
  std::uint64_t run_min = 0;
  /// True for the first save after a restore, if the client does not send a run.
  bool went_back = false;
  /// The size of the user's bytes that belong to the version. They differ from save to save.
  std::uint64_t extra_bytes = 0;
};

/// A version that is being filled.
class pending_version : public reservation {
public:
  /// Reports that the mover has written back every cache line to the persistence domain, so that
  /// `publish` does not have to. Only where `cpu_flush` holds.
  virtual void written_back() = 0;

  /// After `publish` has succeeded: whether it completed the step.
  virtual bool complete() const noexcept = 0;

  /// Returns the space of the user's bytes: one tensor of `save_spec::extra_bytes` bytes. All its
  /// windows are committed before `publish`. Null without such bytes, and once `publish` was
  /// called. Calls for it and for the tensors' windows are made one at a time.
  virtual window_space* extra() noexcept = 0;

  /// The run in which the version is saved.
  virtual std::uint64_t run() const noexcept = 0;
};

using millrace::progress_callback;

/// Which bytes of a version are opened.
enum class version_part : std::uint8_t {
  tensors,
  extra, // the user's bytes alone, as one tensor `extra_tensor`
  all,   // the tensors and, if there are any, the user's bytes after them
};

/// Chooses one of a shard's versions.
struct version_choice {
  std::optional<std::uint64_t> step = {}; // absent: the newest complete one
  /// Chooses the version with this time, as a listing shows it, whatever `step` is: a rank may have
  /// saved a step more than once. 0: the version that a restore takes.
  std::uint64_t saved_at_ns = 0;
  version_part part = version_part::tensors;
};

/// A table of the shards of models.
///
/// A version is an `opened_model`. Its record has the shard's layout as `spec.tensors`, the model's
/// name, the step as `version`, the wall clock as `stored_at_ns`, the digests, and the size of the
/// user's bytes as `extra_bytes`.
///
/// *Newest* means saved last, whatever the step's number: a job that went back to an older step
/// continues from there. A step is *complete* when every shard of the world has a done version of
/// it, saved in the same *run*. A run continues while its ranks register again with the same
/// `shard_spec::life`, whatever ended their registrations. A rank with another life begins the next
/// run, and so does the first save of a rank that went back.
///
/// Threads: any. A completion runs exactly once, on any thread, with no lock held.
class checkpoint_store {
public:
  virtual ~checkpoint_store() = default;

  virtual checkpoint_capabilities capabilities() const noexcept = 0;

  /// Registers a shard and reserves its `keep` identical slots: all of them, or none. A shard that
  /// exists with the same layout, rank and world size keeps its versions.
  /// Errors: `no_space` with the bytes asked for and free; `invalid_argument` when the name has
  /// another layout or world size, naming the first difference and the remedy; `busy` while a job
  /// is attached.
  virtual void enroll(shard_spec shard, completion<enrolled_shard> done) = 0;

  /// Reports that the job of a shard has ended. `finished`: it ended in order, so `repack` may
  /// keep one version only.
  virtual void leave(std::string model, std::uint32_t rank, bool finished) = 0;

  /// Picks the slot to fill, marks it *active* durably, and lends it. It never takes the slot of
  /// the newest complete step, nor one of a step that is not complete and still can be, nor one
  /// that is being read or that a lost peer may still write to. Of the others it takes an empty
  /// one, else one with the same step, else the one saved longest ago.
  ///
  /// A step can still be complete while each rank without a done version of it is saving it, or
  /// belongs to its run, which is the newest, and has saved no later step in it. A rank that was
  /// never registered counts as such a rank.
  ///
  /// The caller fills the windows as with a bucket. `publish(digests)`, where the digests are
  /// required, those of the user's bytes last, makes the bytes persistent unless `written_back` was
  /// called. Only then it marks the slot *done* with step, wall clock and digests, atomically. Its
  /// value is the step. An abandoned reservation leaves the slot empty.
  /// Errors: `not_found` for a shard that is not enrolled; `busy` when no slot can be filled yet,
  ///         naming for each slot its use, or the ranks that it waits for; `no_space` when there is
  ///         no room for the user's bytes.
  ///
  /// `freed`, which may be empty, is kept only when the answer is `busy`. It runs once, on any
  /// thread and with no lock held, when a slot of the shard may be free, maybe before `done` has
  /// run. The next `begin` or `leave` discards it.
  virtual void begin(
    save_spec what, std::function<void()> freed,
    completion<std::unique_ptr<pending_version>> done) = 0;

  /// Opens a version of a shard. A step that is not complete is opened only when it is named.
  /// Errors: `not_found` naming the steps that the shard has.
  virtual void open(
    std::string model, std::uint32_t rank, version_choice which,
    completion<std::shared_ptr<opened_model>> done) = 0;

  /// Lists up to `count_max` models whose names start with `prefix` and sort after `after`, in name
  /// order.
  virtual void list(
    std::string prefix, std::string after, std::uint32_t count_max,
    completion<std::vector<checkpoint_summary>> done) = 0;

  /// Returns what one shard was registered as. Errors: `not_found`.
  virtual void describe(std::string model, std::uint32_t rank, completion<shard_spec> done) = 0;

  /// Removes a model, or one step of it. Readers can finish. Errors: `not_found`; `busy` while a
  /// job is attached.
  virtual void erase(
    std::string model, std::optional<std::uint64_t> step, completion<void> done) = 0;

  /// Frees second versions of finished jobs, but none of a step that can still be complete, and
  /// active slots of dead jobs, and moves versions to reduce fragmentation. A version is freed only
  /// after the one that stays was read on all ranks and matches its digests. A crash at any instant
  /// is safe. It blocks only the shard that it moves, and never touches a version that is being
  /// read.
  virtual void repack(progress_callback progress, completion<repack_report> done) = 0;

  virtual bucket_stats stats() const = 0;

  /// Refuses new calls and waits until those under way are over, or until the deadline.
  [[nodiscard]] virtual status close(std::uint32_t deadline_ms) = 0;
};

} // namespace millrace::storage
