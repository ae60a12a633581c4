// The files of RocksDB: how it makes and writes them. Given to the index when it opens.
#pragma once

#include <millrace/storage/rocksdb/index_reserve.hpp>

#include <rocksdb/env.h>

#include <memory>

namespace millrace::storage::rocksdb {

/// Returns an environment whose writes take space from the reserve when the file system is full,
/// and whose files only their owner can read.
///
/// RocksDB 7.8 gives a file up at its first failed write. When that was the log of its writes, it
/// must be closed; see `index::write`. So a write fails here only when the reserve is used up, too.
std::unique_ptr<::rocksdb::Env> make_index_env(std::shared_ptr<index_reserve> reserve);

} // namespace millrace::storage::rocksdb
