// Models and shards as they are known in memory (the paper's ModelMap), and the rules by which slots are chosen.
// Kept by the pool's core; rebuilt from the index whenever it opens.
#pragma once

#include <millrace/core/checkpoint.hpp>
#include <millrace/storage/checkpoint_store.hpp>
#include <millrace/storage/io/packing.hpp>
#include <millrace/storage/pmem/medium/format.hpp>

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

/// One slot. Guarded by the model's lock, but for what is said otherwise.
struct slot {
  std::uint64_t object = 0; // offset of the slot object; 0: not reserved
  std::vector<data_extent> extents;
  std::uint64_t record_at = 0;      // offset of the version record
  std::uint64_t reserved_bytes = 0; // as taken from the heap

  slot_state state = slot_state::empty;
  std::uint64_t step = 0;
  std::uint64_t sequence = 0; // of a version that is done
  std::uint64_t run = 0;      // likewise: in which it was saved
  std::uint64_t saved_at_ns = 0;
  std::uint64_t changes =
    0; // counts fills and frees, so that a mover notices what happened meanwhile

  /// Alive while somebody fills it, may still write to it, or reads it.
  std::weak_ptr<void> writer;
  std::weak_ptr<void> readers;

  bool reserved() const noexcept { return object != 0; }
  bool in_use() const noexcept { return !writer.expired() || !readers.expired(); }
  bool done() const noexcept { return state == slot_state::done; }
};

/// What never changes of a shard while it is there.
struct shard_shape {
  std::vector<std::uint64_t> tensor_bytes;
  io::packing packed;
  std::uint64_t size_bytes = 0;
  std::uint64_t digests = 0;
};

shard_shape shape_of(const layout& tensors, std::uint64_t window_bytes);

/// What has an index and slots, whatever the index describes: a shard, or a version of the repository.
struct slot_owner {
  table_key key;
  std::uint64_t id = 0;    // of the index
  std::uint64_t index = 0; // offset of the index object; 0: none yet, or no more
  std::uint64_t window_bytes = 0;
  std::shared_ptr<const shard_shape> shape;
  bool erased = false; // invisible; freed when nobody reads it any more
  std::vector<slot> slots{keep_max};
  /// Waits for a slot that is in use; runs once, without the lock, when one is let go of.
  std::function<void()> freed;

  std::uint32_t reserved_slots() const noexcept;
};

struct shard : slot_owner {
  shard_spec spec;
  std::uint64_t run = 0; // the last one in which it was registered, or saved
  bool registered = false;
  bool finished = false;
};

struct stored_version;

/// Everything under one name: the shards of its checkpoints, and what the repository has of it.
struct model {
  explicit model(std::string called) : name(std::move(called)) {}

  const std::string name;
  std::mutex mutex; // guards all below
  std::uint32_t world_size = 0;
  std::map<std::uint32_t, std::shared_ptr<shard>> shards;            // by rank
  std::map<std::uint64_t, std::shared_ptr<stored_version>> versions; // at most one is not erased
  std::uint32_t coming = 0; // versions of the repository on their way in
  std::uint64_t last_sequence = 0;
  std::uint64_t last_saved_at_ns = 0; // of checkpoints
  std::uint64_t run = 0;              // of its jobs, the one that saves now, or saved last
  bool gone = false;                  // taken out of the map: look it up again
};

/// When a version that is saved now counts as saved: later than every other one of the model, whatever the clock does.
/// Those who copy versions on order them by it.
std::uint64_t time_of_save(model& m, std::uint64_t now_ns) noexcept;

/// What was saved as one step in one run. *Problem*: a job that went back saves steps again whose numbers are there.
/// While some ranks have the step anew and others only as it was, those versions do not belong together.
struct version_set {
  std::uint64_t step = 0;
  std::uint64_t run = 0;

  friend auto operator<=>(const version_set&, const version_set&) = default;
};

/// The run in which a rank registers: the model's, or the one after it where an earlier job has a part in the model's.
/// docs/decisions/011-runs.md says how that is known.
std::uint64_t run_to_join(const model& m, const shard_spec& spec);

/// The run in which a registered shard saves a step: the model's, or the one after it when its job has gone back, as
/// it says itself or as its versions in the model's run tell.
std::uint64_t run_to_save(const model& m, const shard& s, const save_spec& what) noexcept;

/// Whether every shard of the world has a done version of the set.
bool is_complete(const model& m, const version_set& set);

/// Steps that are complete; ascending.
std::vector<std::uint64_t> complete_steps(const model& m);

/// What was saved last and is complete: of all steps, or of one.
std::optional<version_set> newest_complete(
  const model& m, std::optional<std::uint64_t> step = std::nullopt);

/// The slot of a shard's version of a step, or of a set, the one saved last if there are several; -1 when there is none.
int find_version(const shard& s, std::uint64_t step) noexcept;
int find_version(const shard& s, const version_set& set) noexcept;
/// Times of saves are unique within a model.
int find_version_saved_at(const shard& s, std::uint64_t saved_at_ns) noexcept;

/// The slot of a shard that holds a version nobody may take: of what is complete and newest in its model, or while
/// nothing is complete the newest of the shard itself.
int protected_slot(const shard& s, const std::optional<version_set>& newest) noexcept;

/// The slot to fill with `step`: none that is protected or in use. An empty one, else one with the same step, else the
/// one saved longest ago; -1 when there is none.
int slot_to_fill(const model& m, const shard& s, std::uint64_t step);

/// True while it has slots that somebody uses.
bool in_use(const slot_owner& s) noexcept;

checkpoint_summary summarize(const model& m);

/// The first difference between two layouts, in words; empty when there is none.
std::string first_difference(const layout& there, const layout& asked);

} // namespace millrace::storage::pmem
