// The state that the parts of one open pool share. Kept by the pool, its store and bucket,
// reservations, readers, and lent windows.
#pragma once

#include <millrace/storage/gate.hpp>
#include <millrace/storage/io/io_pool.hpp>
#include <millrace/storage/pmem/index_reader.hpp>
#include <millrace/storage/pmem/medium/heap.hpp>
#include <millrace/storage/pmem/medium/pool_file.hpp>
#include <millrace/storage/pmem/stored_version.hpp>
#include <millrace/storage/recently_used.hpp>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace millrace::storage::pmem {

/// Requests to a disk are cut to this size, so that several threads work on one window.
inline constexpr std::uint64_t job_bytes_max = 1u << 20;

/// *Lifetime*: reservations, readers and lent windows keep it, and with it the mapping and the lock
/// of the file. Its threads do not keep it for long. After `stop` every call is answered
/// `unavailable`.
///
/// *Locks*, in the order in which they are taken: a model's, `layout_mutex`, `models_mutex`. A
/// thread locks one model at a time.
struct pool_state : std::enable_shared_from_this<pool_state> {
  pool_state(pool_options settings, pool_file opened, std::unique_ptr<heap> pool);
  ~pool_state();
  pool_state(const pool_state&) = delete;
  pool_state& operator=(const pool_state&) = delete;

  /// Fills the tables from the stored index. Errors: `corrupt_data`.
  [[nodiscard]] status load();

  /// Starts to touch the pages of the mapping in the background.
  void populate();

  /// Touches a slot's bytes and gathers them in huge pages, in the background, so that a process
  /// that maps them for the first time (a restore after a crash) fills its page table quickly.
  /// Cost: a second or more for 1 GiB, once; a millisecond when it was done before.
  void make_ready(const std::vector<data_extent>& extents);

  /// Ends the threads. The gate must be closed.
  void stop();

  std::shared_ptr<model> find(const std::string& name) const;
  std::shared_ptr<model> find_or_make(const std::string& name);
  std::vector<std::shared_ptr<model>> all() const;

  std::byte* address(std::uint64_t offset) const noexcept { return objects->base() + offset; }

  /// Makes a change, after a fence for its new objects.
  [[nodiscard]] status publish(change& state) const {
    persist.fence();
    return state.publish(persist);
  }

  const pool_options options;
  const pool_file file;
  const std::unique_ptr<heap> objects;
  const persistence persist;
  const bool direct; // data goes by direct I/O
  io::file_handle direct_file;

  std::mutex layout_mutex; // held while space is reserved or the table changes
  table_map table;
  std::uint64_t table_object = 0;
  std::uint64_t last_version = 0; // the repository's newest version

  mutable std::mutex models_mutex;
  std::map<std::string, std::shared_ptr<model>> models;
  recently_used stored_models; // names of the repository

  const std::shared_ptr<space_account> descriptions; // in memory
  std::shared_ptr<layer_table> layers;
  std::shared_ptr<space_account> stored; // what the repository takes of the heap
  std::atomic<std::uint64_t> evictions = 0;

  gate operations;
  gate bucket_operations; // the bucket's, which may close earlier
  std::atomic<bool> stopping = false;
  io::io_pool pool;
  io::io_pool preparer; // for background work of `make_ready`

  std::mutex repack_mutex; // guards `repacking` and its thread
  bool repacking = false;
  std::thread repacker;

private:
  void populate_part(std::uint64_t from, std::uint64_t to) const;

  std::vector<std::thread> populating_;
};

/// Returns the error of calls after closing.
status closed_status(const pool_state& state);

} // namespace millrace::storage::pmem
