// A file or DAX device of another process, of which granted parts are mapped here. Kept by a peer's link.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/socket/unique_fd.hpp>
#include <millrace/transport/driver.hpp>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace millrace::transport {

/// How many bytes of a file can be mapped.
/// Errors: `invalid_argument` for what is neither a regular file nor a DAX device.
result<std::uint64_t> mappable_bytes(int fd);

/// Addresses for a whole file, with memory behind the granted part of them only.
///
/// *Problem*: a pool may be far larger than what one peer has to do with. Mapping it whole costs page tables and
/// shows every part of it to stray pointers; a mapping for each transfer costs more than the transfer. So the
/// addresses are reserved once, and granules appear in them as the owner grants them, and stay.
///
/// Threads: `grant` from one thread at a time; the others any.
class mapped_file {
public:
  struct extent {
    std::uint64_t size_bytes = 0;
    std::uint64_t file_offset = 0;
    std::uint64_t granule_bytes = 0;
  };

  /// Errors: `permission_denied` for a descriptor that is no such file of at least that size, or granules of a
  /// size that no owner chooses; `unsupported` when the system has no room for it.
  static result<std::shared_ptr<mapped_file>> reserve(net::unique_fd fd, const extent& where);
  ~mapped_file();
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::uint64_t size_bytes() const noexcept { return where_.size_bytes; }

  /// Maps a part, whole granules; what is mapped already stays as it is.
  /// Errors: `permission_denied` for a part that is not made of granules; `unsupported` when it cannot be mapped.
  [[nodiscard]] status grant(std::uint64_t offset, std::uint64_t length);
  /// True if all of `[offset, offset + length)`, which lies inside, is mapped.
  bool granted(std::uint64_t offset, std::uint64_t length) const;

  /// Fills the page tables of a granted part, once, before a copy in the given direction; so the copy takes no
  /// page faults, and memory that is not there is an error instead of a signal.
  /// Errors: `io_error`.
  [[nodiscard]] status populate(std::uint64_t offset, std::uint64_t length, direction dir);

private:
  mapped_file() = default;
  status map_locked(std::uint64_t offset, std::uint64_t length);
  void add_locked(std::uint64_t offset, std::uint64_t length);

  net::unique_fd fd_;
  extent where_;
  std::uint64_t populate_bytes_ = 0;
  bool may_sync_ = true;
  bool filled_stays_ = true; // false where the kernel takes write access back from clean pages
  std::byte* reserved_ = nullptr;
  std::uint64_t reserved_bytes_ = 0;
  std::byte* data_ = nullptr;
  // What has been filled so far, for each `populate_bytes_`. Of a large file most of it never becomes memory.
  std::atomic<std::uint8_t>* filled_ = nullptr;
  std::uint64_t filled_bytes_ = 0;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> granted_; // where runs begin and end; they do not touch
};

} // namespace millrace::transport
