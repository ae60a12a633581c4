// The engine: the state that the parts of one open RocksDB bucket share. Kept by the bucket, its
// reservations and its readers.
#pragma once

#include <millrace/storage/gate.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/io/io_pool.hpp>
#include <millrace/storage/layer_table.hpp>
#include <millrace/storage/rocksdb/committer.hpp>
#include <millrace/storage/rocksdb/index.hpp>
#include <millrace/storage/rocksdb/model_table.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/storage/rocksdb/segment_store.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

namespace millrace::storage::rocksdb {

/// Requests to the disk are cut to this size, so that several threads work on one window.
inline constexpr std::uint64_t io_bytes_max = 1u << 20;

/// The files of a bucket, opened and checked, before any thread runs.
struct bucket_files {
  io::file_handle lock;
  std::shared_ptr<space_account> account;
  std::shared_ptr<index_reserve> reserve;
  std::unique_ptr<index> db;
  std::shared_ptr<segment_store> space;
};

/// *Lifetime*: reservations and readers keep the engine. Its threads do not keep it for long, since
/// `stop` empties their queues. After `stop` every call is answered `unavailable`, and the
/// directory may be opened again even while readers of this engine exist.
struct engine : std::enable_shared_from_this<engine> {
  engine(rocksdb_bucket_options settings, bucket_files opened);

  /// Fills the tables from the index. Errors: `corrupt_data` naming the model.
  [[nodiscard]] status load();

  /// Ends the threads, closes the files, and marks the stop as orderly. The gate must be closed.
  void stop();

  /// Makes an attempt to take `size_bytes` of the capacity, `described_bytes` of them in memory,
  /// and repeats it after evicting models where configured.
  void take_space(
    std::uint64_t size_bytes, std::uint64_t described_bytes, std::function<status()> attempt,
    std::uint32_t attempts_left, completion<void> done);

  const rocksdb_bucket_options options;
  bucket_files files;
  std::shared_ptr<segment_store> space;
  const std::shared_ptr<space_account> descriptions; // in memory; a part of what is taken
  model_table table;
  record_cache records{record_cache_bytes};
  std::shared_ptr<layer_table> layers;
  bool loaded = false;            // all of the index
  std::uint64_t last_version = 0; // the committer's thread only
  std::atomic<std::uint64_t> evictions = 0;
  gate operations;
  std::shared_mutex reading; // shared: the index is read by another thread than those of `pool`
  io::io_pool pool;
  committer commits;

  // Versions that the index may or may not have. Their space must not be used again.
  std::mutex uncertain_mutex;
  std::vector<std::shared_ptr<void>> uncertain;

private:
  [[nodiscard]] status refill_reserve();
  [[nodiscard]] status leave_mark();
  void evict(
    std::uint64_t size_bytes, std::uint64_t described_bytes, std::function<void(status)> done);
  [[nodiscard]] status load_model(
    std::string_view name, std::string_view value,
    const std::unordered_map<layer_id, described_layer>& described,
    std::map<std::uint64_t, version_ptr>& found);
};

/// Returns the error of calls after closing.
status closed_status(const engine& e);

} // namespace millrace::storage::rocksdb
