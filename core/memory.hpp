// Registered memory in which tensors are stored or staged. Arenas lend it, buckets use it.
#pragma once

#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace millrace {

/// A run of registered memory. It is returned when the last copy of `owner` is destroyed.
///
/// *Problem*: a peer that stopped answering may still copy into memory that it was lent, long after
/// its request has failed. Code that may still touch the bytes keeps a copy of `owner`.
struct memory_block {
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  std::shared_ptr<void> owner;
};

/// A file or device that is mapped shared. Its bytes can be reached through the descriptor, too.
struct file_mapping {
  int fd = -1; // belongs to the owner, which keeps it open while the mapping is used
  std::uint64_t file_offset = 0;
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
};

/// Lends registered memory: a staging pool, or a mapping of its own.
class memory_source {
public:
  virtual ~memory_source() = default;

  /// Lends `size_bytes` aligned to `alignment` (a power of two, at most 4096).
  ///
  /// Errors:  `no_space` with the bytes asked for and the bytes free.
  /// Threads: any.
  virtual result<memory_block> allocate(std::uint64_t size_bytes, std::size_t alignment) = 0;

  /// Returns true if the memory lies in huge pages, so that devices can access it in few large
  /// runs.
  virtual bool contiguous() const noexcept = 0;

  /// Return how many bytes can be lent in total, and how many are lent now.
  virtual std::uint64_t capacity_bytes() const noexcept = 0;
  virtual std::uint64_t used_bytes() const noexcept = 0;
};

} // namespace millrace
