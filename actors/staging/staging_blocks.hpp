// Equal blocks of staging memory, lent in the order of the requests. Used by snapshots.
#pragma once

#include <millrace/core/memory.hpp>

#include <cstdint>
#include <memory>

namespace millrace::actors {

/// Lends blocks in the order of the requests.
///
/// *Problem*: several saves share a bounded staging memory. Each needs blocks again and again, and
/// none may starve. So a save that asks while all blocks are lent waits, without blocking a thread,
/// for the next block that comes back.
class staging_blocks : public std::enable_shared_from_this<staging_blocks> {
public:
  /// Takes all the memory now.
  /// Errors:  those of the source.
  static result<std::shared_ptr<staging_blocks>> make(
    memory_source& memory, std::uint64_t block_bytes, std::uint32_t count);
  virtual ~staging_blocks() = default;

  virtual std::uint64_t block_bytes() const noexcept = 0;

  /// Lends a block, now or when one comes back. Dropping the last copy of its `owner` returns the
  /// block. If a save does not want its block any more, the next save gets it.
  /// Threads: any; `done` runs with no lock held.
  virtual void lease(completion<memory_block> done) = 0;
};

} // namespace millrace::actors
