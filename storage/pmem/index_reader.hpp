// The index reader: reads a pool's index and checks all of it. Called when a pool opens, and by
// check and info.
#pragma once

#include <millrace/storage/pmem/medium/heap.hpp>
#include <millrace/storage/pmem/stored_version.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace millrace::storage::pmem {

/// The offsets of index objects, as the stored table has them.
using table_map = std::map<table_key, std::uint64_t>;

struct pool_index {
  table_map table;
  std::uint64_t table_object = 0;
  std::map<std::string, std::shared_ptr<model>> models;
  std::uint64_t unreachable_bytes = 0; // of objects that nothing refers to
  std::uint64_t last_version = 0;      // of the repository
  /// The layers of the repository's versions.
  std::shared_ptr<layer_table> layers = std::make_shared<layer_table>();
  std::shared_ptr<std::atomic<std::uint64_t>> stored_bytes =
    std::make_shared<std::atomic<std::uint64_t>>(0);
};

/// Called with each problem. Returns false to stop reading.
using problem_callback = std::function<bool(const std::string&)>;

/// Returns the index, without the entries that have a problem.
pool_index read_pool_index(const heap& objects, const problem_callback& problem);

/// Returns the digests in the record of a slot's version. A model may have been stored without
/// digests.
/// Errors: `corrupt_data` saying what does not match.
result<std::vector<std::uint64_t>> read_digests(
  const heap& objects, const slot_owner& s, std::uint64_t number);

} // namespace millrace::storage::pmem
