// Storing a version in a RocksDB bucket: from reserving its space to its place in the index.
#pragma once

#include <millrace/storage/rocksdb/engine.hpp>

#include <memory>
#include <vector>

namespace millrace::storage::rocksdb {

/// Takes space for a model and hands out a reservation; runs on the engine's pool.
void reserve_model(
  const std::shared_ptr<engine>& e, model_spec spec, std::vector<described_layer> layers,
  gate::ticket ticket, completion<std::unique_ptr<reservation>> done);

} // namespace millrace::storage::rocksdb
