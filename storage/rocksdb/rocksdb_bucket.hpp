// Durable models: an index in RocksDB, tensors in segment files beside it. Opened by `open_bucket`.
#pragma once

#include <millrace/storage/bucket.hpp>
#include <millrace/storage/rocksdb/rocksdb_options.hpp>

#include <memory>

namespace millrace::storage {

/// Opens the bucket, making it where there is none. Reads the index; blocks.
///
/// Errors: `invalid_argument` (a file, a directory with other things in it, options that make no
/// sense), `unsupported_version`, `permission_denied`, `busy` when a live process has it open,
/// `corrupt_data`. Nothing that is there is ever made anew.
result<std::shared_ptr<bucket>> open_rocksdb_bucket(rocksdb_bucket_options options);
/// With `options.staging` given apart.
result<std::shared_ptr<bucket>> open_rocksdb_bucket(
  rocksdb_bucket_options options, std::shared_ptr<memory_source> staging);

} // namespace millrace::storage
