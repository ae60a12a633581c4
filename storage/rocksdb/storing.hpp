// Storing a version in a RocksDB bucket, from reserving its space to its entry in the index. Called
// by the bucket.
#pragma once

#include <millrace/storage/rocksdb/engine.hpp>

#include <memory>
#include <vector>

namespace millrace::storage::rocksdb {

/// Takes space for a model and passes a reservation to `done`. Runs on the engine's pool. Errors:
/// as `bucket::reserve`.
void reserve_model(
  const std::shared_ptr<engine>& e, model_spec spec, std::vector<described_layer> layers,
  gate::ticket ticket, completion<std::unique_ptr<reservation>> done);

} // namespace millrace::storage::rocksdb
