// Files: complete reads and writes, with errors as values. Used by every kind that stores on a
// disk.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace millrace::storage::io {

/// The alignment of direct I/O: addresses, offsets and lengths are multiples of it. Every known
/// device accepts it.
inline constexpr std::uint64_t direct_io_bytes = 4096;

/// Returns memory for direct I/O that no peer reaches.
memory_block heap_block(std::uint64_t size_bytes);

class file_handle {
public:
  file_handle() = default;
  explicit file_handle(int fd) noexcept : fd_(fd) {}
  file_handle(file_handle&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  file_handle& operator=(file_handle&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~file_handle();

  int get() const noexcept { return fd_; }

private:
  int fd_ = -1;
};

/// Opens a file with `flags | O_CLOEXEC`. A file that it creates has `mode`. Errors: the system's,
/// naming the path.
result<file_handle> open_file(const std::string& path, int flags, unsigned mode = 0600);

[[nodiscard]] status write_all(
  const file_handle& file, const void* data, std::uint64_t size_bytes, std::uint64_t offset,
  const std::string& path);
/// Errors: `corrupt_data` when the file ends early.
[[nodiscard]] status read_all(
  const file_handle& file, void* data, std::uint64_t size_bytes, std::uint64_t offset,
  const std::string& path);

/// Returns "process 4711 (millrace)" from the kernel's table of locks, for an open file that a
/// process has locked with `flock`; "another process" if that is not visible.
std::string who_locks(const file_handle& file);

/// Makes it durable that files were created in or removed from a directory.
[[nodiscard]] status sync_directory(const std::string& path);

/// Creates a directory and its parents, durably, if they do not exist.
[[nodiscard]] status make_directories(const std::string& path);

/// Creates a directory that only its owner may enter, and its parents. One that exists is taken
/// from others, with all files in it, if they could only read there.
///
/// Errors: `permission_denied` when the directory belongs to another user, or when others may write
/// there: what they put there cannot be told from what is ours.
[[nodiscard]] status make_private_directory(const std::string& path);

/// Returns how many bytes of the file system of `path` an unprivileged process may still take.
result<std::uint64_t> free_bytes(const std::string& path);

/// Returns true when files in `directory` can be read and written without the page cache.
bool supports_direct_io(const std::string& directory);

} // namespace millrace::storage::io
