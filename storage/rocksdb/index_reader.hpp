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

/// Opens the index alone, as `open_to_verify`. Errors: `corrupt_data` also for one that has become
/// shorter: since the last orderly stop, or to no change at all beside files of models.
result<std::unique_ptr<index>> open_index_to_read(const std::string& path);

/// Accepts a place without an index if it never had one. Errors: `corrupt_data` when files of a
/// bucket are left; `invalid_argument` when the place is something else.
[[nodiscard]] status check_no_index(const std::string& path);
bool has_held_models(const std::string& path);

/// Adds how to salvage: a damaged bucket is not lost, unless all of its index is.
status with_remedy(status why, const std::string& path);

/// Keeps other processes from opening the directory. Errors: `busy`.
result<io::file_handle> lock_directory(const std::string& path);

} // namespace millrace::storage::rocksdb
