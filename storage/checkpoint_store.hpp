// Where checkpoints rest: registered shards with a fixed number of slots each. Asked by the checkpoint actors.
#pragma once

#include <millrace/core/checkpoint.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/repack_report.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace::storage {

/// What a kind of store can do, as data.
struct checkpoint_capabilities {
  bool durable = false;  // a version that is done survives `kill -9` and power loss
  bool in_place = false; // slots are mapped: one window holds a whole shard, where it will rest
  bool cpu_flush =
    false; // bytes become persistent by writing back cache lines: the mover can do it
};

/// What enrolling found or made.
struct enrolled_shard {
  checkpoint_summary model; // as it is now, all shards
  bool resumed = false;     // the shard was there already; its versions stay
};

/// A version that is to be saved.
struct save_spec {
  std::string model;
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  bool went_back = false; // the rank has saved in this life, and restored something since
};

/// A version being filled.
class pending_version : public reservation {
public:
  /// Whoever moved the bytes has written every line of them back to the persistence domain: `publish` need not.
  /// Only where `cpu_flush` holds.
  virtual void written_back() = 0;

  /// After `publish` has succeeded: whether the step was complete then.
  virtual bool complete() const noexcept = 0;
};

/// Progress of a long operation: done and total bytes; a total of 0 says that nobody knows how far it is. Returns false
/// to stop it. Any thread.
using progress_callback = std::function<bool(std::uint64_t done, std::uint64_t total)>;

/// One of a shard's versions.
struct version_choice {
  std::optional<std::uint64_t> step = {}; // absent: the newest complete one
  /// A rank may have saved a step more than once: the version with this time, as a listing shows it, whatever `step`
  /// says. 0: the one that a restore would take.
  std::uint64_t saved_at_ns = 0;
};

/// A table of models' shards. Thread-safe. Completions run exactly once, on any thread, with no lock held.
///
/// A version is an `opened_model`: its record has the shard's layout as `spec.tensors`, the model's name, the step
/// as `version`, the wall clock as `stored_at_ns`, and the digests.
///
/// *Newest* means saved last, whatever the step's number: a job that went back to an older step goes on from there.
/// A step is *complete* when every shard of the world has a done version of it, saved in the same *run*. A run goes on
/// while its ranks register again as what they were (`shard_spec::life`), whatever ended their registrations; another
/// life in place of one of them begins the next, and so does the first save of a rank that went back.
class checkpoint_store {
public:
  virtual ~checkpoint_store() = default;

  virtual checkpoint_capabilities capabilities() const noexcept = 0;

  /// Finds or makes a shard's index and reserves its `keep` identical slots: all of them, or nothing.
  /// A shard that is there with an equal layout, rank and world size goes on, its versions with it.
  /// Errors: `no_space` with bytes asked for and free; `invalid_argument` when another layout or world size
  /// is there under the name (naming the first difference and the remedy); `busy` while a job is attached.
  virtual void enroll(shard_spec shard, completion<enrolled_shard> done) = 0;

  /// The job of a shard is gone. `finished`: it ended in order; `repack` may keep one version of it only.
  virtual void leave(std::string model, std::uint32_t rank, bool finished) = 0;

  /// Picks the slot to fill, marks it *active* durably, and lends it. Never the slot of the newest complete step,
  /// never one that is being read or that a lost peer may still write to. Of the others an empty one, else one
  /// that holds the same step, else the one saved longest ago.
  ///
  /// The caller fills the window(s) as with a bucket. `publish(digests)` (obligatory here) makes the bytes
  /// persistent, unless `written_back` was called, and only then marks the slot *done* with step, wall clock and
  /// digests, atomically; its value is the step. An abandoned reservation leaves the slot empty.
  /// Errors: `not_found` for a shard that is not enrolled; `busy` when every slot is in use, naming what uses it.
  ///
  /// `freed`, which may be empty, is kept only when the answer is `busy`: it runs once, on any thread and with no lock
  /// held, when a slot of the shard is let go of (maybe before `done` has run). The next `begin` or `leave` forgets it.
  virtual void begin(
    save_spec what, std::function<void()> freed,
    completion<std::unique_ptr<pending_version>> done) = 0;

  /// Opens a shard's version.
  /// Errors: `not_found` naming the steps that are there; a step that is not complete is opened when named.
  virtual void open(
    std::string model, std::uint32_t rank, version_choice which,
    completion<std::shared_ptr<opened_model>> done) = 0;

  /// Up to `count_max` models whose names start with `prefix` and sort after `after`, in name order.
  virtual void list(
    std::string prefix, std::string after, std::uint32_t count_max,
    completion<std::vector<checkpoint_summary>> done) = 0;

  /// What one shard was registered as. Errors: `not_found`.
  virtual void describe(std::string model, std::uint32_t rank, completion<shard_spec> done) = 0;

  /// Removes a model, or one step of it. Readers finish. Errors: `not_found`; `busy` while a job is attached.
  virtual void erase(
    std::string model, std::optional<std::uint64_t> step, completion<void> done) = 0;

  /// Frees second versions of finished jobs and active slots of dead ones, and joins what is fragmented. A version goes
  /// only after the one that stays, of all ranks, was read and is what it was. May be killed at any instant. Blocks
  /// nobody but the shard being moved, and never touches what is being read.
  virtual void repack(progress_callback progress, completion<repack_report> done) = 0;

  virtual bucket_stats stats() const = 0;

  /// Refuses new work and returns when what was begun is done or `deadline_ms` is over.
  [[nodiscard]] virtual status close(std::uint32_t deadline_ms) = 0;
};

} // namespace millrace::storage
