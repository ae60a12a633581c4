// Reading a version out of a RocksDB bucket. Called by the bucket when a model is opened.
#pragma once

#include <millrace/storage/rocksdb/engine.hpp>

#include <memory>
#include <string>

namespace millrace::storage::rocksdb {

/// Opens a version. Uses the disk unless the record is cached. Errors: as `bucket::open`.
result<std::shared_ptr<opened_model>> open_model(
  const std::shared_ptr<engine>& e, const std::string& name, std::uint64_t version);

/// Opens a version if that takes no disk and little time. Otherwise null: `open_model` can tell.
/// Errors:  as `bucket::open`.
/// Threads: any.
result<std::shared_ptr<opened_model>> open_model_in_memory(
  const std::shared_ptr<engine>& e, const std::string& name, std::uint64_t version);

} // namespace millrace::storage::rocksdb
