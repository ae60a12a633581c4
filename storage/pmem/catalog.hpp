// Changes of the stored index, each put together here and made by one publish. Used by registration, saves, erasing,
// reclaiming and repack.
#pragma once

#include <millrace/storage/pmem/core.hpp>
#include <millrace/storage/pmem/extents.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::storage::pmem {

/// Reserves a slot's data and its object, and fills the object. Needs `layout_mutex`.
/// Errors: `no_space`, with nothing left in the change.
result<slot> reserve_slot(core& c, change& into, const shard& s, std::uint64_t number);

/// Gives a slot's space back with the change.
void free_slot(change& into, const slot& one);

/// The words of a slot as they are stored.
slot_words& words_of(const core& c, const shard& s, std::uint64_t number);

void set_object(core& c, change& into, const shard& s, std::uint64_t number, std::uint64_t value);
void set_done(core& c, change& into, const shard& s, std::uint64_t number, std::uint64_t value);
void set_active(core& c, change& into, const shard& s, std::uint64_t number, std::uint64_t value);
void set_flags(core& c, change& into, const shard& s, bool finished, bool erased);

/// Writes a new index object of a shard with its slots as they are in memory, all without active bytes but for those
/// that are marked so. Errors: `no_space`.
result<std::uint64_t> write_index(core& c, change& into, const shard& s);

/// Writes a new table and lets the change switch to it. Needs `layout_mutex`; the caller takes over `next` and the
/// returned offset once the change is published. Errors: `no_space`.
result<std::uint64_t> write_table(core& c, change& into, const table_map& next);

/// Fills the record of a slot's version, persistent except for a fence.
[[nodiscard]] status write_record(
  core& c, const shard& s, std::uint64_t number, const slot& one,
  const std::vector<std::uint64_t>& digests);

/// Frees one slot and what is in it, at once. Needs the model's lock and takes `layout_mutex`.
[[nodiscard]] status release_slot(core& c, shard& s, std::uint64_t number);

} // namespace millrace::storage::pmem
