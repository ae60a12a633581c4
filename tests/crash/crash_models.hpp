// The models that crash tests store. Their bytes follow from name and generation. Used by parent
// and child.
#pragma once

#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>

#include <functional>
#include <string>

namespace millrace::testing {

inline result<std::shared_ptr<storage::bucket>> open_crash_bucket(const std::string& path) {
  storage::rocksdb_bucket_options options;
  options.path = path;
  options.capacity_bytes = 64u << 20;
  options.io_threads = 2;
  options.window_bytes = 512u << 10;
  options.segment_bytes = 4u << 20;
  options.index_reserve_bytes = 48u << 20;
  return storage::open_rocksdb_bucket(std::move(options));
}

inline std::uint64_t crash_seed(const std::string& name, std::uint64_t generation) {
  return std::hash<std::string>{}(name) + generation;
}

/// Sizes change with the generation: inside the index, of one window, of several.
inline model_spec crash_spec(const std::string& name, std::uint64_t generation) {
  auto seed = crash_seed(name, generation) * 0x9e3779b97f4a7c15u;
  static constexpr std::uint64_t largest[] = {2'000, 300'000, 1'500'000};
  auto bound = largest[seed % 3];
  return spec_of(name, {seed / 3 % bound, 0, seed / 7 % bound, 64});
}

} // namespace millrace::testing
