// A file or DAX device of another process, of which this process maps the granted parts.
// Kept by a driver that reaches peers of this host.
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

/// Returns how many bytes of a file can be mapped.
/// Errors:  `invalid_argument` for what is neither a regular file nor a DAX device.
result<std::uint64_t> mappable_bytes(int fd);

/// Addresses for a whole file, with memory behind its granted parts only.
///
/// *Problem*: a pool may be far larger than the part that one peer needs. Mapping all of it costs
/// page tables and exposes every part of it to stray pointers. A mapping for each transfer costs
/// more than the transfer. So the addresses are reserved once; granules are mapped there as the
/// owner grants them, and stay mapped.
///
/// Threads: `grant` from one thread at a time; the others from any.
class mapped_file {
public:
  struct file_range {
    std::uint64_t size_bytes = 0;
    std::uint64_t file_offset = 0;
    std::uint64_t granule_bytes = 0;
  };

  /// Reserves addresses for a file.
  /// Errors:  `permission_denied` for a descriptor that is not such a file of at least that size,
  ///          or for a granule size out of bounds; `unsupported` when the address space has no
  ///          room.
  static result<std::shared_ptr<mapped_file>> reserve(net::unique_fd fd, const file_range& where);
  ~mapped_file();
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::uint64_t size_bytes() const noexcept { return where_.size_bytes; }

  /// Maps a part, which must consist of whole granules. Granules that are mapped already stay as
  /// they are.
  /// Errors:  `permission_denied` for a part that is not made of granules; `unsupported` when it
  ///          cannot be mapped.
  [[nodiscard]] status grant(std::uint64_t offset, std::uint64_t length);
  /// Returns true if all of `[offset, offset + length)` is mapped. The range must lie inside the
  /// file.
  bool granted(std::uint64_t offset, std::uint64_t length) const;
  /// Returns the number of mapped parts that do not touch each other.
  std::size_t runs() const;

  /// Fills the page tables of a granted part, once, before a copy in the given direction. The copy
  /// then takes no page faults, and missing memory is an error instead of a signal.
  /// Errors:  `io_error`.
  [[nodiscard]] status populate(std::uint64_t offset, std::uint64_t length, direction dir);

private:
  mapped_file() = default;
  status map_locked(std::uint64_t offset, std::uint64_t length);
  void add_locked(std::uint64_t offset, std::uint64_t length);

  net::unique_fd fd_;
  file_range where_;
  std::uint64_t populate_bytes_ = 0;
  bool may_sync_ = true;
  bool filled_stays_ = true; // false where the kernel write-protects clean pages again
  std::byte* reserved_ = nullptr;
  std::uint64_t reserved_bytes_ = 0;
  std::byte* data_ = nullptr;
  // What has been filled so far, per `populate_bytes_`. For a large file, most of this table is
  // never touched.
  std::atomic<std::uint8_t>* filled_ = nullptr;
  std::uint64_t filled_bytes_ = 0;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> granted_; // begin and end of each run; runs do not touch
};

} // namespace millrace::transport
