// The options of a RocksDB bucket: keys of a provider in the configuration set some of them.
#pragma once

#include <millrace/config/schema.hpp>
#include <millrace/core/memory.hpp>
#include <millrace/storage/when_full.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace millrace::storage {

struct rocksdb_bucket_options {
  /// A directory of this bucket, or one that is empty or can be made.
  std::string path;
  /// False: the directory must have a bucket. A disk that is not mounted is then an error.
  bool create_if_missing = true;
  /// The most bytes that models may take, with padding. 0: what the file system has at opening.
  std::uint64_t capacity_bytes = 1u << 30;
  when_full full = when_full::refuse;
  /// Threads that read and write; 1 to 64.
  std::uint32_t io_threads = 4;
  /// Staging memory that callers lend for each window; a multiple of 4096, at least 512 KiB.
  std::uint64_t window_bytes = 8u << 20;
  /// The memory that callers lend is contiguous, see `memory_source`.
  bool contiguous_staging = false;
  /// Models up to this size are stored in the index; at most `window_bytes`.
  std::uint64_t inline_max_bytes = 64u << 10;
  /// Size of new segment files.
  std::uint64_t segment_bytes = 1u << 30;
  /// Space of the file system that is kept for the index, so that models can be erased from a full
  /// one. Segment files leave as much again free.
  std::uint64_t index_reserve_bytes = 64u << 20;
  /// The most bytes of memory for what the bucket keeps of each model outside its files.
  std::uint64_t descriptions_max_bytes = 256u << 20;
  /// False: through the page cache, as on file systems without direct I/O.
  bool direct_io = true;
};

namespace rocksdb {
inline constexpr std::uint64_t record_cache_bytes = 64u << 20;
// The index fills one of its buffers while it flushes the other.
inline constexpr std::uint64_t write_buffer_bytes = 16u << 20;
inline constexpr std::uint64_t write_buffers = 2;
inline constexpr std::uint64_t block_cache_bytes = 8u << 20; // RocksDB's default
} // namespace rocksdb

/// Each read or write of a large model passes through staging memory.
inline config::memory_needs needs_of(const rocksdb_bucket_options& options) {
  return {
    .heap_bytes = rocksdb::record_cache_bytes +
      rocksdb::write_buffers * rocksdb::write_buffer_bytes + rocksdb::block_cache_bytes +
      options.descriptions_max_bytes,
    .window_bytes = options.window_bytes};
}

} // namespace millrace::storage

namespace millrace::config {
template <>
key_table<storage::rocksdb_bucket_options> keys_of();
}
