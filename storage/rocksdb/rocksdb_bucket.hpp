// The durable bucket: an index in RocksDB, tensors in segment files beside it. Opened by
// `open_bucket`.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/when_full.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace millrace::storage {

struct rocksdb_bucket_options {
  /// A directory of this bucket, or one that is empty or can be made.
  std::string path;
  /// Lends the windows; it must have at least `window_bytes`. Others may use it too.
  std::shared_ptr<memory_source> staging;
  /// Most bytes that the models may take, padding included. 0: what the file system has at the
  /// opening.
  std::uint64_t capacity_bytes = 0;
  when_full full = when_full::refuse;
  /// Threads that read and write; 1 to 64.
  std::uint32_t io_threads = 4;
  /// Bytes lent at a time; a multiple of 4096, at least 512 KiB.
  std::uint64_t window_bytes = 8u << 20;
  /// Models up to this size are stored inside the index; at most `window_bytes`.
  std::uint64_t inline_max_bytes = 64u << 10;
  /// Size of new segment files.
  std::uint64_t segment_bytes = 1u << 30;
  /// Most windows that wait for staging memory at once. One more is answered `busy`.
  std::uint32_t waiting_max = 16384;
  /// False: I/O uses the page cache, as on file systems without direct I/O.
  bool direct_io = true;
};

/// Opens the bucket, and makes it if the directory is empty or missing. Reads the index; blocks.
///
/// Errors: `invalid_argument` (the path is a file, the directory holds other things, an option is
/// out of range), `unsupported_version`, `permission_denied`, `busy` when a live process has it
/// open, `corrupt_data`. A bucket that exists is never made anew.
result<std::shared_ptr<bucket>> open_rocksdb_bucket(rocksdb_bucket_options options);

} // namespace millrace::storage
