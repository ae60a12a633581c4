// The durable bucket: an index in RocksDB, tensors in segment files beside it. Opened by
// the kind in `storage/builtin.cpp`.
#pragma once

#include <millrace/storage/at_rest.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/rocksdb/rocksdb_options.hpp>

#include <memory>

namespace millrace::storage {

/// Opens the bucket, and makes it if the directory is empty or missing. Reads the index; blocks.
///
/// Errors: `invalid_argument` (the path is a file, the directory holds other things, an option is
/// out of range), `not_found` when there is none and `create_if_missing` is false,
/// `unsupported_version`, `permission_denied`, `busy` when a live process has it
/// open, `corrupt_data`. A bucket that exists is never made anew.
result<std::shared_ptr<bucket>> open_rocksdb_bucket(rocksdb_bucket_options options);
/// Opens the bucket for callers that lend parts of `staging`.
result<std::shared_ptr<bucket>> open_rocksdb_bucket(
  rocksdb_bucket_options options, std::shared_ptr<memory_source> staging);

/// Finds the models of a bucket that are whole, without changing its index and segments. Needs
/// space for a copy of the index in TMPDIR.
/// Errors: `invalid_argument` for a directory without an index, `busy` when a live process has it
///         open, `no_space`; those of `to`.
[[nodiscard]] status salvage_rocksdb_bucket(const std::string& path, salvager& to);

/// Reads every model of a bucket and compares it with its checksums. Changes nothing.
/// Errors: `not_found` when no bucket is there, `busy` while a process has it open, `corrupt_data`
///         when its index cannot be read.
[[nodiscard]] status verify_rocksdb_bucket(
  const std::string& path, const std::function<void(const model_at_rest&)>& seen);

bool is_rocksdb_bucket(const std::string& path);

inline constexpr storage_at_rest rocksdb_at_rest{
  is_rocksdb_bucket, salvage_rocksdb_bucket, verify_rocksdb_bucket};

} // namespace millrace::storage
