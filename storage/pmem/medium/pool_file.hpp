// The file or device of a pool: its medium, whether it is ours, and which process has it open.
// Checked before libpmemobj opens it.
#pragma once

#include <millrace/core/rounding.hpp>
#include <millrace/core/status.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/pmem/medium/format.hpp>
#include <millrace/storage/pmem/medium/heap.hpp>
#include <millrace/storage/pmem/pool.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace millrace::storage::pmem {

/// The file of a pool, open and locked against other processes until it is closed.
struct pool_file {
  io::file_handle file;
  std::string path;
  std::uint64_t size_bytes = 0;
  bool device = false;
  pool_medium medium = pool_medium::automatic;
};

/// Returns how much memory the pool at `path`, which may be one to be made with `new_bytes`, takes
/// because its file system keeps files in memory.
std::uint64_t bytes_in_memory(const std::string& path, std::uint64_t new_bytes);

/// Opens and locks the file, and detects its medium. Errors: `not_found`; `busy` naming the process
/// that has it open.
result<pool_file> open_pool_file(const std::string& path, pool_medium wanted);

/// Has the file system keep space for all of the file. A store to a hole of a full file system
/// would end the process by a signal.
/// Errors:  `no_space`.
[[nodiscard]] status fill_holes(const pool_file& file);

enum class image_access : std::uint8_t {
  read_only,
  own_copy, // changes do not reach the file; not for devices
};

/// The bytes of a pool's file, mapped without libpmemobj.
class file_image {
public:
  /// Errors: the system's.
  static result<file_image> map(const pool_file& file, image_access access);
  file_image(file_image&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  file_image& operator=(file_image&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~file_image();

  std::span<std::byte> bytes() const noexcept { return bytes_; }

private:
  file_image() = default;

  std::span<std::byte> bytes_;
};

/// The part of libpmemobj's own header that says where its parts are.
struct pool_descriptor {
  char layout[1024];
  std::uint64_t lanes_offset, lanes;
  std::uint64_t heap_offset;
  std::uint64_t unused[124];
  std::uint64_t checksum;
  std::uint64_t root_offset;
  std::uint64_t run_id;
  std::uint64_t root_size;
  std::uint64_t conversion_flags;
  std::uint64_t heap_size;
};

/// Reads the descriptor of a file of at least the size of an empty heap. Errors: as
/// `check_headers`, for what is no pool of this format.
result<pool_descriptor> read_descriptor(const pool_file& file, std::span<const std::byte> bytes);

/// Returns the error for a damaged pool, with the remedies.
status damaged_pool(const std::string& path, const std::string& what);

/// Reads the headers and the heap without changing them, and refuses a file that is foreign, newer,
/// truncated or damaged. libpmemobj may open what passes. Returns the words for `heap::open`.
/// Errors: those of `open_pool`; `not_found` for a device without a pool.
[[nodiscard]] result<heap_words> check_headers(const pool_file& file);

/// Checks a root object. `file_bytes`: the size of the file or device.
[[nodiscard]] status check_root(
  const pool_root& root, const std::string& path, std::uint64_t file_bytes);

/// Returns the size of the file of a pool: the capacity in whole pages.
constexpr std::uint64_t file_bytes_of(std::uint64_t capacity_bytes) noexcept {
  return round_down(capacity_bytes, 4096);
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
