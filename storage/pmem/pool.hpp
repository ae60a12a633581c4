// The pool: a file or device of persistent memory that stores checkpoints and models. Opened by a
// node, made and inspected by the command line.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/storage/at_rest.hpp>
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

/// The medium of a pool, which decides how bytes become persistent.
enum class pool_medium : std::uint8_t {
  automatic, // detected
  dax,       // a devdax device, or a file that can be mapped with MAP_SYNC: writes back cache lines
  /// tmpfs or hugetlbfs in place of persistent memory. Cache lines are written back as on
  /// persistent memory, so the cost is the same. Versions survive `kill -9`, but not a restart of
  /// the machine.
  memory,
  file, // any other file system: direct I/O from staging memory, or msync
};

/// Returns the name: "dax".
std::string_view to_string(pool_medium medium) noexcept;

/// The choice when there is too little space for a new shard.
enum class when_low_space : std::uint8_t {
  refuse, // `no_space`
  /// Frees first remains of dead jobs and second versions of finished ones, then old versions of
  /// jobs that are not attached. Never frees a model's newest complete step, nor the last two
  /// versions of a job that has not ended in order, nor any version of a model whose newest
  /// complete step is damaged.
  reclaim,
};

/// The way by which data reaches a medium of kind `file`.
enum class file_path : std::uint8_t {
  automatic, // direct I/O where the file system supports it and there is staging memory
  direct,    // direct I/O from staging memory: several windows
  mapped,    // the mapping and msync: one window
};

/// What callers lend for the windows of direct I/O.
enum class lent_memory : std::uint8_t {
  none,
  pages,
  contiguous, // see `memory_source`
};

/// The size of the smallest pool.
inline constexpr std::uint64_t pool_bytes_min = 16u << 20;

struct pool_options {
  /// A device (/dev/dax0.0) or a file.
  std::string path;
  /// Size of the file when it is made; 0 for a device, all of which is used. An existing pool keeps
  /// its size.
  std::uint64_t capacity_bytes = 0;
  pool_medium medium = pool_medium::automatic;
  /// Makes the pool if nothing is at the path. Never changes what is at the path.
  bool create_if_missing = false;
  when_low_space low_space = when_low_space::refuse;
  /// The most bytes that models of the repository may take; 0: all that the checkpoints leave.
  std::uint64_t models_capacity_bytes = 0;
  when_full models_full = when_full::refuse;
  /// The most bytes of memory for what describes the models of the repository.
  std::uint64_t descriptions_max_bytes = 256u << 20;
  /// Touches the mapping in the background after opening, since the first touch of a page costs
  /// fifty times as much as a later one.
  bool populate = true;
  /// Threads that persist, copy, read and write; 1 to 64.
  std::uint32_t io_threads = 4;
  file_path data_path = file_path::automatic;
  lent_memory staging = lent_memory::none;
  /// Staging memory that callers lend for each window of direct I/O; a multiple of 4096, at least
  /// 512 KiB. A shard keeps its first value.
  std::uint64_t window_bytes = 8u << 20;
  /// For tests: observes the order in which bytes become persistent.
  std::shared_ptr<pmem::persist_observer> observer;
};

struct pool_info {
  std::string path;
  std::string uuid;
  std::uint32_t format_version = 0;
  std::uint64_t created_ns = 0;
  pool_medium medium = pool_medium::automatic;
  /// The guarantees of the medium, in words.
  std::string medium_note;
  bool direct_io = false; // data uses direct I/O; for a pool that is not open: it could
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
  std::vector<std::string> problems; // empty: no damage was found
  std::uint64_t versions = 0;        // checkpoints and models of the repository
  std::uint64_t verified_bytes = 0;
  std::uint64_t unreachable_bytes = 0; // the bytes of objects that nothing refers to
};

/// An open pool. The pool, its store, its bucket, lent windows and open versions share the mapping,
/// which is released with the last of them.
class pool {
public:
  virtual ~pool() = default;

  virtual pool_info info() const = 0;
  /// Returns the store of checkpoints. Closing it closes the whole pool, so close `models()` first.
  virtual std::shared_ptr<checkpoint_store> checkpoints() = 0;
  /// Returns the bucket of the repository. Its names are independent of those of checkpoints.
  virtual std::shared_ptr<bucket> models() = 0;

  /// Returns the mapping of the whole file or device, so that other processes can copy into it.
  /// Empty where windows are staging memory. Valid as long as this object.
  virtual std::vector<file_mapping> mappings() const = 0;
};

/// Makes a pool and describes it. Errors: `already_exists` when anything is at the path;
/// `no_space`; `invalid_argument`.
result<pool_info> create_pool(const pool_options& options);

/// Describes a pool without changing it. Errors: as `open_pool`.
result<pool_info> inspect_pool(const std::string& path);

/// Compares the contents of a pool with their checksums, without changing it; with `verify_bytes`
/// the bytes of versions, too. Damage inside is in the report. Errors: as `open_pool`, for a pool
/// that cannot be read.
result<check_report> check_pool(
  const std::string& path, bool verify_bytes, const progress_callback& progress = {});

/// Finds the checkpoints and models of a pool that are whole, whatever else is damaged, without
/// changing it. Where the table of models is lost, it finds some that were removed, too.
/// Errors: as `open_pool` for what is no pool of this version; those of `to`.
[[nodiscard]] status salvage_pool(const std::string& path, salvager& to);

/// Opens a pool. Blocks while it checks the index.
///
/// Errors: `not_found` (naming `millrace pool create`); `invalid_argument` for a file that is not a
/// pool of Millrace; `unsupported_version` for a newer one; `corrupt_data` for one that is
/// truncated or damaged; `busy` when it is open elsewhere, naming the process. A file that is
/// refused is not changed.
result<std::shared_ptr<pool>> open_pool(pool_options options);

} // namespace millrace::storage
