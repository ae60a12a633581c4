// The file or device of a pool: its medium, whether it is ours, and which process has it open.
// Checked before libpmemobj opens it.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/pmem/medium/format.hpp>
#include <millrace/storage/pmem/medium/heap.hpp>
#include <millrace/storage/pmem/pool.hpp>

#include <cstdint>
#include <string>

namespace millrace::storage::pmem {

/// The file of a pool, open and locked against other processes until it is closed.
struct pool_file {
  io::file_handle file;
  std::string path;
  std::uint64_t size_bytes = 0;
  bool device = false;
  pool_medium medium = pool_medium::automatic;
};

/// Opens and locks the file, and detects its medium. Errors: `not_found`; `busy` naming the process
/// that has it open.
result<pool_file> open_pool_file(const std::string& path, pool_medium wanted);

/// Reads the headers without changing them, and refuses a file that is foreign, newer, truncated or
/// damaged.
/// Errors: those of `open_pool`; `not_found` for a device without a pool.
[[nodiscard]] status check_headers(const pool_file& file);

/// Checks a root object. `file_bytes`: the size of the file or device.
[[nodiscard]] status check_root(
  const pool_root& root, const std::string& path, std::uint64_t file_bytes);

/// Returns the size of the file of a pool: the capacity in whole pages.
constexpr std::uint64_t file_bytes_of(std::uint64_t capacity_bytes) noexcept {
  return io::round_down(capacity_bytes, 4096);
}

/// Makes a pool with an empty index, completely or not at all. Errors: `invalid_argument` when the
/// medium is not the expected one.
[[nodiscard]] status make_pool(
  const std::string& path, std::uint64_t size_bytes, pool_medium expected);

/// Returns what a medium guarantees, in words.
std::string medium_note(pool_medium medium);

/// Returns true when data can be written to the file past the page cache.
bool knows_direct_io(const pool_file& file);

} // namespace millrace::storage::pmem
