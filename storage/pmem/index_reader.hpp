// The index reader: reads a pool's index and checks all of it. Called when a pool opens, and by
// check and info.
#pragma once

#include <millrace/storage/pmem/medium/heap.hpp>
#include <millrace/storage/pmem/stored_version.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace millrace::storage::pmem {

/// The offsets of index objects, as the stored table has them.
using table_map = std::map<table_key, std::uint64_t>;

struct pool_index {
  table_map table;
  std::uint64_t table_object = 0;
  std::map<std::string, std::shared_ptr<model>> models;
  std::uint64_t unreachable_bytes = 0; // the bytes of objects that nothing refers to
  std::uint64_t last_version = 0;      // the repository's newest version
  std::shared_ptr<layer_table> layers; // the layers of the repository's versions
  /// What the repository takes of the heap.
  std::shared_ptr<space_account> stored = std::make_shared<space_account>(unbounded);
};

/// The bytes of a pool, mapped by libpmemobj or without it.
struct pool_view {
  const std::byte* base = nullptr;
  std::uint64_t size_bytes = 0;
  const pool_root* root = nullptr; // null: it is damaged
  /// The objects of the heap. Without them the heap is not trusted: every object may reach to the
  /// end of the file, and its own checksum says whether it is one.
  std::optional<std::unordered_map<std::uint64_t, object_info>> objects;

  const std::byte* at(std::uint64_t offset) const noexcept { return base + offset; }
};

pool_view view_of(const heap& objects, std::uint64_t size_bytes);

/// Called with each problem. Returns false to stop reading.
using problem_callback = std::function<bool(const std::string&)>;

/// Returns the index, without the entries that have a problem. Where the heap is not trusted and
/// the table of models cannot be read, it searches all bytes for the indices of shards and models;
/// it may find some that were removed. `descriptions` counts what is kept in memory of the
/// repository's versions; null: nothing does.
pool_index read_pool_index(
  const pool_view& view, const problem_callback& problem,
  std::shared_ptr<space_account> descriptions = nullptr);

/// Returns the digests in the record of a slot's version, those of the user's bytes last. A model
/// may have been stored without
/// digests.
/// Errors: `corrupt_data` saying what does not match.
result<std::vector<std::uint64_t>> read_digests(
  const std::byte* pool, const slot_owner& s, std::uint64_t number);

} // namespace millrace::storage::pmem
