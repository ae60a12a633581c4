// Pools: files and devices of persistent memory in which checkpoints and models rest. Opened by a node, made and inspected by
// the command line.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/storage/checkpoint_store.hpp>
#include <millrace/storage/when_full.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::storage {

namespace pmem {
class persist_observer;
}

/// What a pool lies on, which decides how bytes become persistent.
enum class pool_medium : std::uint8_t {
  automatic, // found out
  dax, // a devdax device, or a file that can be mapped with MAP_SYNC: cache lines are written back
  memory, // tmpfs, hugetlbfs: stands in for persistent memory. Cache lines are written back as if it were, so that
          // it costs what that costs; versions survive `kill -9`, not the machine
  file,   // any other file system: direct I/O from staging memory, or msync
};

/// "dax".
std::string_view to_string(pool_medium medium) noexcept;

/// What happens when registering a shard finds too little space.
enum class when_low_space : std::uint8_t {
  refuse, // `no_space`
  /// First remains of dead jobs and second versions of finished ones, then old versions of jobs that are not attached;
  /// never a model's newest complete step, nor the last two versions of a job that has not ended in order, nor any while
  /// that newest step is damaged.
  reclaim,
};

/// How data of the medium `file` gets there.
enum class file_path : std::uint8_t {
  automatic, // direct I/O where the file system knows it and there is staging memory
  direct,    // direct I/O from staging memory: several windows
  mapped,    // into the mapping, made durable by msync: one window
};

struct pool_options {
  /// A device (/dev/dax0.0) or a file.
  std::string path;
  /// Size of the file when it is made; 0 for a device: all of it. One that is there keeps its own.
  std::uint64_t capacity_bytes = 0;
  pool_medium medium = pool_medium::automatic;
  /// Makes the pool where there is nothing; never touches what is there.
  bool create_if_missing = false;
  when_low_space low_space = when_low_space::refuse;
  /// Most bytes that models of the repository may take; 0: what the checkpoints leave.
  std::uint64_t models_capacity_bytes = 0;
  when_full models_full = when_full::refuse;
  /// Touches the mapping after opening, in the background: the first touch of a page costs fifty times a later one.
  bool populate = true;
  /// Threads that persist, copy, read and write; 1 to 64.
  std::uint32_t io_threads = 4;
  file_path data_path = file_path::automatic;
  /// Lends the windows of direct I/O; at least one of `window_bytes`.
  std::shared_ptr<memory_source> staging;
  /// Bytes lent at a time by direct I/O; a multiple of 4096, at least 512 KiB. Shards keep what they began with.
  std::uint64_t window_bytes = 8u << 20;
  /// Windows that may wait for staging memory at once; one more is answered `busy`.
  std::uint32_t waiting_max = 16384;
  /// For tests: sees the order in which bytes become persistent.
  std::shared_ptr<pmem::persist_observer> observer;
};

struct pool_info {
  std::string path;
  std::string uuid;
  std::uint32_t format_version = 0;
  std::uint64_t created_ns = 0;
  pool_medium medium = pool_medium::automatic;
  /// The medium in words: what it promises and what not.
  std::string medium_note;
  bool direct_io = false; // data goes by direct I/O; of a pool at rest: it can
  std::uint64_t size_bytes = 0;
  std::uint64_t free_bytes = 0; // in pieces large enough for data
  std::uint64_t largest_free_bytes = 0;
  std::uint64_t models = 0; // with checkpoints
  std::uint64_t shards = 0;
  std::uint64_t versions = 0;          // that are done
  std::uint64_t repository_models = 0; // one version each
};

struct check_report {
  pool_info pool;
  std::vector<std::string> problems; // empty: all is well
  std::uint64_t versions = 0;        // of checkpoints and of the repository
  std::uint64_t verified_bytes = 0;
  std::uint64_t unreachable_bytes = 0; // of objects nothing names
};

/// An open pool. The pool, its store, its bucket, what it lent and what is being read share the mapping: it goes with the last.
class pool {
public:
  virtual ~pool() = default;

  virtual pool_info info() const = 0;
  /// Closing it closes the whole pool: close `models()` first.
  virtual std::shared_ptr<checkpoint_store> checkpoints() = 0;
  /// Models of the repository. Their names and those of checkpoints are apart.
  virtual std::shared_ptr<bucket> models() = 0;

  /// The whole file or device as mapped here, so that other processes can copy straight into it. Empty where windows
  /// are staging memory. Valid as long as this object.
  virtual std::vector<file_mapping> mappings() const = 0;
};

/// Makes a pool. Errors: `already_exists` when anything is at the path; `no_space`; `invalid_argument`.
result<pool_info> create_pool(const pool_options& options);

/// Reads what a pool says of itself, changing nothing. Errors: as `open_pool`.
result<pool_info> inspect_pool(const std::string& path);

/// Compares everything in a pool with its checksums, changing nothing; `verify_bytes`: the versions' bytes, too.
/// Errors: those of a pool that cannot be looked into at all; what is wrong inside is in the report.
result<check_report> check_pool(
  const std::string& path, bool verify_bytes, const progress_callback& progress = {});

/// Opens a pool; blocks while it checks the index.
///
/// Errors: `not_found` (naming `millrace pool create`); `invalid_argument` for something that is no pool of ours;
/// `unsupported_version` for a newer one; `corrupt_data` for one that is truncated or damaged; `busy` when it is open
/// elsewhere, naming the process. What is refused is left as it is.
result<std::shared_ptr<pool>> open_pool(pool_options options);

} // namespace millrace::storage
