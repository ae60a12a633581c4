// Opens a bucket's directory: checks to whom it belongs, whether it is open, and its format. Called
// by `open_rocksdb_bucket`.
#pragma once

#include <millrace/storage/rocksdb/engine.hpp>

namespace millrace::storage::rocksdb {

/// Opens lock, index and segments. Sets `capacity_bytes` and `direct_io` where they were left to
/// the file system. Errors: as `open_rocksdb_bucket`, naming the path and the remedy.
result<bucket_files> open_bucket_files(rocksdb_bucket_options& options);

/// Opens lock, index and segments to read only, without changing anything. Errors: `not_found`,
/// `busy`, `corrupt_data`.
result<bucket_files> open_to_verify(const std::string& path);
/// Keeps other processes from opening the directory. Errors: `busy`.
result<io::file_handle> lock_directory(const std::string& path);

} // namespace millrace::storage::rocksdb
