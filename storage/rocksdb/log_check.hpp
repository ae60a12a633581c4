// Tells a power cut from damage in the logs of an index. Called before an index is opened.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <string>

namespace millrace::storage::rocksdb {

/// *Problem*: a power cut keeps any part of a batch that was not synced. A record of it may end
/// early, or its checksum may differ. So it is with damaged records of batches that were
/// acknowledged, and RocksDB takes a damaged size for a record that ends early.
///
/// A batch is written when the one before it is synced. So only what is behind the last record that
/// can be read may be the rest of a power cut. RocksDB begins a new log then, and removes the old
/// one, which may come back after a second cut.
///
/// Returns the number of the first change in the logs; 0: they have none.
/// Errors: `corrupt_data` when a batch begins behind a record that cannot be read, in the same log
/// or, by its number, in the next.
result<std::uint64_t> check_logs(const std::string& directory);

} // namespace millrace::storage::rocksdb
