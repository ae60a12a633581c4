// The model map: models and shards in memory (the paper's ModelMap), and the rules for choosing
// slots. Kept by `pool_state`, rebuilt from the index whenever the pool opens.
#pragma once

#include <millrace/core/checkpoint.hpp>
#include <millrace/storage/checkpoint_store.hpp>
#include <millrace/storage/io/packing.hpp>
#include <millrace/storage/pmem/medium/format.hpp>
#include <millrace/storage/space_account.hpp>

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace millrace::storage::pmem {

/// One slot. Guarded by the model's lock.
struct slot {
  std::uint64_t object = 0; // offset of the slot object; 0: not reserved
  std::vector<data_extent> extents;
  std::uint64_t record_at = 0;      // offset of the version record
  std::uint64_t object_bytes = 0;   // of the slot object, as taken from the heap
  std::uint64_t reserved_bytes = 0; // of all its objects, likewise
  std::uint64_t extra_room = 0;     // what the slot object has more for the user's bytes

  slot_state state = slot_state::empty;
  std::uint64_t step = 0;
  std::uint64_t sequence = 0; // numbers the versions that are done
  std::uint64_t run = 0;      // in which the done version was saved
  std::uint64_t saved_at_ns = 0;
  std::uint64_t extra_bytes = 0; // the user's bytes of a version that is done or being saved
  std::uint64_t changes = 0;     // counts fills and frees, so that a mover notices them

  /// Alive while the slot is being filled, may still be written to, or is being read.
  std::weak_ptr<void> writer;
  std::weak_ptr<void> readers;

  bool reserved() const noexcept { return object != 0; }
  bool in_use() const noexcept { return !writer.expired() || !readers.expired(); }
  bool done() const noexcept { return state == slot_state::done; }
};

/// The properties of a shard that never change while it exists.
struct shard_shape {
  std::vector<std::uint64_t> tensor_bytes;
  io::packing packed;
  std::uint64_t size_bytes = 0;
  std::uint64_t digests = 0;
};

shard_shape shape_of(const layout& tensors, std::uint64_t window_bytes);

/// Returns the offset of the user's bytes of a slot's version.
std::uint64_t extra_at(const slot& one, const shard_shape& shape) noexcept;

/// An owner of an index and slots: a shard, or a version of the repository.
struct slot_owner {
  table_key key;
  std::uint64_t id = 0;    // the id of the index
  std::uint64_t index = 0; // offset of the index object; 0: it has none
  std::uint64_t window_bytes = 0;
  std::shared_ptr<const shard_shape> shape;
  bool erased = false; // invisible; freed when its last reader ends
  std::vector<slot> slots{keep_max};
  /// Runs once, without the lock, when a slot is released. See `checkpoint_store::begin`.
  std::function<void()> freed;

  std::uint32_t reserved_slots() const noexcept;
};

struct shard : slot_owner {
  shard_spec spec;
  std::shared_ptr<const account_lease> described; // what is kept in memory of it
  std::uint64_t run = 0; // the last run in which it was registered or saved
  bool registered = false;
  bool finished = false;
};

/// Returns about what is kept in memory of a shard, and of its registration while it has one.
std::uint64_t described_bytes(const shard_spec& spec, const shard_shape& shape) noexcept;

struct stored_version;

/// Everything under one name: the shards of its checkpoints, and its versions in the repository.
struct model {
  explicit model(std::string called) : name(std::move(called)) {}

  const std::string name;
  std::mutex mutex; // guards all members below
  std::uint32_t world_size = 0;
  std::map<std::uint32_t, std::shared_ptr<shard>> shards;            // by rank
  std::map<std::uint64_t, std::shared_ptr<stored_version>> versions; // at most one is not erased
  std::uint32_t coming = 0; // versions of the repository that are being stored
  std::uint64_t last_sequence = 0;
  std::uint64_t last_saved_at_ns = 0; // when a checkpoint was saved last
  std::uint64_t run = 0;              // the run of the job that saves, or saved last
  bool gone = false;                  // removed from the map: look it up again
};

/// Returns the time of a save: later than that of every other version of the model, whatever the
/// clock does. Flushing orders versions by it.
std::uint64_t time_of_save(model& m, std::uint64_t now_ns) noexcept;

/// The versions that were saved as one step in one run.
///
/// *Problem*: a job that went back saves steps under numbers that exist. While some ranks have the
/// new version of a step and others only the old one, these versions do not belong together.
struct version_set {
  std::uint64_t step = 0;
  std::uint64_t run = 0;

  friend auto operator<=>(const version_set&, const version_set&) = default;
};

inline version_set set_of(const slot& one) noexcept { return {one.step, one.run}; }

/// Returns the run in which a rank registers: the model's, or the next one when another job took
/// part in the model's run. docs/decisions/011-runs.md describes the rule.
std::uint64_t run_to_join(const model& m, const shard_spec& spec);

/// Returns the run in which a registered shard saves a step: the model's, or a later one when its
/// job has gone back, according to the request or to the shard's versions in the model's run.
/// Asking again, also after the shard was registered again, gives the same run.
std::uint64_t run_to_save(const model& m, const shard& s, const save_spec& what) noexcept;

/// Returns whether every shard of the world has a done version of the set.
bool is_complete(const model& m, const version_set& set);

/// Returns the complete steps, ascending.
std::vector<std::uint64_t> complete_steps(const model& m);

/// Returns the complete set that was saved last, of all steps or of one.
std::optional<version_set> newest_complete(
  const model& m, std::optional<std::uint64_t> step = std::nullopt);

/// Returns the slot with a shard's version of a step or a set, the one saved last if there are
/// several; -1 for none.
int find_version(const shard& s, std::uint64_t step) noexcept;
int find_version(const shard& s, const version_set& set) noexcept;
/// Returns the slot with the version saved at this time, which is unique within a model; -1 for
/// none.
int find_version_saved_at(const shard& s, std::uint64_t saved_at_ns) noexcept;

/// Returns the slot whose version must stay: that of the model's newest complete set or, while no
/// set is complete, the newest of the shard. -1 for none.
int protected_slot(const shard& s, const std::optional<version_set>& newest) noexcept;

/// Returns whether a slot holds a version of a step that is not complete and still can be, while
/// the model is in `run`: each rank that lacks the step is saving it, or has not come that far.
/// docs/decisions/013-steps-in-lockstep.md describes the rule.
bool is_awaited(const model& m, const slot& one, std::uint64_t run) noexcept;

/// Returns the ranks of the world without a done version of a set, ascending.
std::vector<std::uint32_t> ranks_without(const model& m, const version_set& set);

/// Returns whether a shard waits with a version of a step that another shard, which has saved `set`
/// now, has left out.
bool has_passed(const shard& waiting, const shard& s, const version_set& set) noexcept;

/// Returns the slot to fill with `step` in `run`, never one that is protected, awaited or in use:
/// an empty one, else one with the same step, else the one saved longest ago; -1 for none.
int slot_to_fill(const model& m, const shard& s, std::uint64_t step, std::uint64_t run);

/// Returns true while a slot of it is being filled or read.
bool in_use(const slot_owner& s) noexcept;

checkpoint_summary summarize(const model& m);

/// Returns the first difference between two layouts, in words; empty when they are equal.
std::string first_difference(const layout& there, const layout& asked);

} // namespace millrace::storage::pmem
