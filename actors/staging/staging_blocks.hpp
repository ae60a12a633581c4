// Equal blocks of staging memory, lent in the order in which they were asked for. Used by snapshots.
#pragma once

#include <millrace/core/memory.hpp>

#include <cstdint>
#include <memory>

namespace millrace::actors {

/// *Problem*: several saves share a bounded staging memory; each needs blocks again and again, and none may starve.
/// Whoever asks while all are lent waits, without blocking, for the next one that comes back.
class staging_blocks : public std::enable_shared_from_this<staging_blocks> {
public:
  /// Takes all the memory now. Errors: those of the source.
  static result<std::shared_ptr<staging_blocks>> make(
    memory_source& memory, std::uint64_t block_bytes, std::uint32_t count);
  virtual ~staging_blocks() = default;

  virtual std::uint64_t block_bytes() const noexcept = 0;

  /// Lends a block, now or when one comes back. Giving up the last copy of its `owner` returns it. A block for
  /// somebody who does not want it any more goes to the next. Threads: any; `done` runs with no lock held.
  virtual void lease(completion<memory_block> done) = 0;
};

} // namespace millrace::actors
