// The catalog: assembles changes of the stored index, each made by one publish. Used by
// registration, saves, erasing, reclaiming and repack.
#pragma once

#include <millrace/storage/pmem/medium/extents.hpp>
#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::storage::pmem {

/// Returns the id of a new index: random, never 0.
std::uint64_t random_id();

/// Reserves a slot's data and its object, with room for this many bytes of the user, and fills the
/// object. Needs `layout_mutex`.
/// Errors: `no_space`, with nothing left in the change.
result<slot> reserve_slot(
  pool_state& state, change& into, const slot_owner& s, std::uint64_t number,
  std::uint64_t extra_bytes = 0);

/// Replaces the object of a slot by one with more room for the user's bytes. The data stays where
/// it is; the former record is gone with the change. Returns the slot as it is then. Needs
/// `layout_mutex` until the change is published.
/// Errors: `no_space`; the change is then to be dropped.
result<slot> enlarge_slot(
  pool_state& state, change& into, const slot_owner& s, std::uint64_t number,
  std::uint64_t extra_room);

/// Frees a slot's space with the change.
void free_slot(change& into, const slot& one);

/// Returns the words of a slot as they are stored.
slot_words& words_of(const pool_state& state, const slot_owner& s, std::uint64_t number);

void set_object(
  pool_state& state, change& into, const slot_owner& s, std::uint64_t number, std::uint64_t value);
void set_state(
  pool_state& state, change& into, const slot_owner& s, std::uint64_t number,
  const slot_word& value);
void set_flags(pool_state& state, change& into, const slot_owner& s, std::uint64_t flags);

/// Returns the flags as they are in memory.
std::uint64_t flags_of(const shard& s);

/// Writes a new index object of a shard with its slots as they are in memory. Errors: `no_space`.
result<std::uint64_t> write_index(pool_state& state, change& into, const shard& s);

/// Returns the bytes of an index object, with its slots as they are in memory: an `index_header`
/// and the body.
byte_buffer index_bytes(
  const slot_owner& s, std::uint64_t run, std::uint64_t flags, std::span<const std::byte> body);

/// Fills a reserved object and writes it back. It is persistent after the next fence.
[[nodiscard]] status fill_object(
  const pool_state& state, std::uint64_t offset, std::span<const std::byte> bytes);

/// Writes a new table and adds the switch to it to the change. Returns the table's offset, which
/// the caller takes over together with `next` once the change is published. Needs `layout_mutex`.
/// Errors: `no_space`.
result<std::uint64_t> write_table(pool_state& state, change& into, const table_map& next);

/// Stores the record of a slot's version and returns its range, which is not written back.
std::span<const std::byte> store_record(
  pool_state& state, const slot_owner& s, std::uint64_t number, const slot& one,
  const std::vector<std::uint64_t>& digests);

/// Stores the record and writes it back. It is persistent after the next fence.
[[nodiscard]] status write_record(
  pool_state& state, const slot_owner& s, std::uint64_t number, const slot& one,
  const std::vector<std::uint64_t>& digests);

/// Frees one slot and its version in a change of its own. Needs the model's lock and takes
/// `layout_mutex`.
[[nodiscard]] status release_slot(pool_state& state, slot_owner& s, std::uint64_t number);

/// Frees the index and all slots of an owner with the change.
void free_owner(change& into, const slot_owner& s);

} // namespace millrace::storage::pmem
