// The log of RocksDB, as lines of ours. Given to the index when it opens.
#pragma once

#include <rocksdb/env.h>

#include <memory>
#include <string>

namespace millrace::storage::rocksdb {

/// Returns a logger that passes RocksDB's warnings and errors to `millrace::log`, with the path. A
/// log file of RocksDB's own would need space on the file system, and ends the process without it.
std::shared_ptr<::rocksdb::Logger> make_index_log(std::string path);

} // namespace millrace::storage::rocksdb
