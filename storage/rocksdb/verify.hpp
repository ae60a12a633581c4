// Verifying a RocksDB bucket that no process has open. Called by `millrace models verify`.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <functional>
#include <string>

namespace millrace::storage {

/// One model as it rests.
struct model_at_rest {
  std::string name;
  std::uint64_t version = 0;
  std::uint64_t size_bytes = 0;
  bool has_checksums = false;
  /// `corrupt_data` naming the tensor and the offset, or what else is wrong.
  status outcome;
};

/// Reads every model of a bucket and compares it with its checksums. Changes nothing. `seen` is
/// called for each model, in the order of names, also for those that are damaged.
///
/// Errors: `not_found` when no bucket is there, `busy` while a process has it open, `corrupt_data`
/// when its index cannot be read.
[[nodiscard]] status verify_rocksdb_bucket(
  const std::string& path, const std::function<void(const model_at_rest&)>& seen);

} // namespace millrace::storage
