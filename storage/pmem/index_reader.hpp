// Reading a pool's index, with every check there is. Used when a pool opens, and by check and info.
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

/// Offsets of index objects: what the stored table says.
using table_map = std::map<table_key, std::uint64_t>;

struct pool_index {
  table_map table;
  std::uint64_t table_object = 0;
  std::map<std::string, std::shared_ptr<model>> models;
  std::uint64_t unreachable_bytes = 0; // of objects that nothing names
  std::uint64_t last_version = 0;      // of the repository
  /// Layers of the versions of the repository, which keep them.
  std::shared_ptr<layer_table> layers = std::make_shared<layer_table>();
  std::shared_ptr<std::atomic<std::uint64_t>> stored_bytes =
    std::make_shared<std::atomic<std::uint64_t>>(0);
};

/// Called with each thing that is wrong. Returns false to stop at it.
using problem_callback = std::function<bool(const std::string&)>;

/// What is found is left out of the result where it is wrong.
pool_index read_pool_index(const heap& objects, const problem_callback& problem);

/// Reads the record of a slot's version; a version of the repository may have been stored without digests.
/// Errors: `corrupt_data` saying what does not match.
result<std::vector<std::uint64_t>> read_digests(
  const heap& objects, const slot_owner& s, std::uint64_t number);

} // namespace millrace::storage::pmem
