// A version of a model of the repository in memory. Made by `storing.cpp` and by
// `index_reader.cpp`; kept by its model and by code that fills or reads it.
#pragma once

#include <millrace/storage/layer_table.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/pmem/medium/heap.hpp>
#include <millrace/storage/pmem/model_map.hpp>

#include <cstdint>
#include <memory>
#include <optional>

namespace millrace::storage::pmem {

/// A version, which has one slot. Guarded by its model's lock once it is published; before, only
/// the code that fills it has it.
struct stored_version : slot_owner {
  model_spec spec;
  std::uint64_t size_bytes = 0;
  std::uint64_t index_bytes = 0; // the size of the index object, as taken from the heap
  layer_lease layers;
  account_lease described; // what is kept in memory of it, beside the layers
  account_lease taken;     // the bytes taken from the heap
  /// The reservation of its objects until it is published. An unpublished version leaves nothing
  /// behind.
  std::optional<change> reserved;

  std::uint64_t number() const noexcept { return key.number; }
  std::uint64_t stored_at_ns() const noexcept { return slots[0].saved_at_ns; }
  std::uint64_t flags() const noexcept {
    return (erased ? flag_erased : 0) | (spec.pinned ? flag_pinned : 0);
  }
  std::uint64_t heap_bytes() const noexcept { return index_bytes + slots[0].reserved_bytes; }
};

/// Returns the version of a name; null when it has none. Needs the model's lock.
std::shared_ptr<stored_version> find_stored(const model& m);

/// Returns about what is kept in memory of a version, beside the descriptions of its layers.
std::uint64_t described_bytes(const checked_spec& checked, const shard_shape& shape) noexcept;

model_summary summarize(const stored_version& v);

} // namespace millrace::storage::pmem
