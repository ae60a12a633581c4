// The file or device under a pool: what kind of medium it is, whether it is ours, who has it open. Asked before
// libpmemobj is let near it.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/pmem/medium/format.hpp>
#include <millrace/storage/pmem/medium/heap.hpp>
#include <millrace/storage/pmem/pool.hpp>

#include <cstdint>
#include <string>

namespace millrace::storage::pmem {

/// A pool's file, open and locked against other processes until it is closed.
struct pool_file {
  io::file_handle file;
  std::string path;
  std::uint64_t size_bytes = 0;
  bool device = false;
  pool_medium medium = pool_medium::automatic;
};

/// Opens and locks it, and finds out the medium. Errors: `not_found`, `busy` naming the process that has it.
result<pool_file> open_pool_file(const std::string& path, pool_medium wanted);

/// Reads the headers, changing nothing, and refuses what is foreign, newer, truncated or damaged.
/// Errors: those of `open_pool`; `not_found` for a device on which nothing has been made.
[[nodiscard]] status check_headers(const pool_file& file);

/// What is wrong with a root object, if anything; `file_bytes`: what there is of the pool.
[[nodiscard]] status check_root(
  const pool_root& root, const std::string& path, std::uint64_t file_bytes);

/// The size of a file for a pool of that capacity: whole pages.
constexpr std::uint64_t file_bytes_of(std::uint64_t capacity_bytes) noexcept {
  return io::round_down(capacity_bytes, 4096);
}

/// Makes a pool with an empty index, whole or not at all. Errors: `invalid_argument` when what is there is not the
/// medium that is expected.
[[nodiscard]] status make_pool(
  const std::string& path, std::uint64_t size_bytes, pool_medium expected);

/// What a medium promises.
std::string medium_note(pool_medium medium);

/// True when data can be written to the file past the page cache.
bool knows_direct_io(const pool_file& file);

} // namespace millrace::storage::pmem
