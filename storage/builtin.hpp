// The kinds of buckets by name. Called by a node when it starts its providers.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/when_full.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace millrace::storage {

/// What every kind may need; a kind reads what concerns it. Zero: the kind's own default.
struct bucket_options {
  std::string kind; // "memory", "rocksdb"
  std::string path; // of kinds that rest on disk
  std::uint64_t capacity_bytes = 0;
  when_full full = when_full::refuse;
  std::uint32_t io_threads = 0;
  std::uint64_t window_bytes = 0;
  std::uint64_t inline_max_bytes = 64u << 10;
  /// Where models rest (memory), or what lends windows (rocksdb).
  std::shared_ptr<memory_source> memory;
};

/// Kinds this build has.
std::vector<std::string> bucket_kinds();

/// Opens a bucket; blocks while a kind reads its disk.
/// Errors: `invalid_argument` for an unknown kind, naming those there are; else as the kind says.
result<std::shared_ptr<bucket>> open_bucket(const bucket_options& options);

} // namespace millrace::storage
