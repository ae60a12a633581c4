// Opening a bucket's directory: whose is it, who has it open, which format has it.
#pragma once

#include <millrace/storage/rocksdb/engine.hpp>

namespace millrace::storage::rocksdb {

/// Errors: as `open_rocksdb_bucket`, naming the path and the remedy. Settles `capacity_bytes` and
/// `direct_io` where they were left to the file system.
result<bucket_files> open_bucket_files(rocksdb_bucket_options& options);

} // namespace millrace::storage::rocksdb
