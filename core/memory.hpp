// Memory in which tensors rest or pass through. Arenas give it; buckets are given it.
#pragma once

#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace millrace {

/// A run of registered memory. Giving up the last copy of `owner` returns it.
///
/// *Problem*: a peer that stopped answering may still be copying into memory we lent it, while the
/// request it served was given up long ago. Whoever might still touch the bytes holds `owner`.
struct memory_block {
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  std::shared_ptr<void> owner;
};

/// A file or device that somebody mapped whole and shared: its bytes are reachable by descriptor and offset, too.
struct file_mapping {
  int fd = -1; // of whoever made the mapping, who keeps it open as long as the mapping is used
  std::uint64_t file_offset = 0;
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
};

/// Something that lends registered memory: a staging pool, or a mapping of its own.
class memory_source {
public:
  virtual ~memory_source() = default;

  /// Lends `size_bytes` aligned to `alignment` (a power of two, at most 4096).
  ///
  /// Errors:  `no_space` with what was asked for and what is free.
  /// Threads: any.
  virtual result<memory_block> allocate(std::uint64_t size_bytes, std::size_t alignment) = 0;

  /// True if the memory lies in huge pages, so that devices can take it in few large runs.
  virtual bool contiguous() const noexcept = 0;

  /// Bytes that could be lent in total, and bytes lent now.
  virtual std::uint64_t capacity_bytes() const noexcept = 0;
  virtual std::uint64_t used_bytes() const noexcept = 0;
};

} // namespace millrace
