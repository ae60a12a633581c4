// Equal blocks of staging memory, shared by processes. Used by snapshots.
#pragma once

#include <millrace/core/fair_shares.hpp>
#include <millrace/core/memory.hpp>

#include <cstdint>
#include <memory>

namespace millrace::actors {

/// Lends blocks to processes, which share them as `fair_shares` says and take turns.
///
/// *Problem*: several saves share a bounded staging memory. Each needs blocks again and again, and
/// none may starve, not even when the trainer of another one is stopped. So a save whose process
/// has its share waits, without blocking a thread, for a block that comes back.
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
  virtual void lease(party who, completion<memory_block> done) = 0;
};

} // namespace millrace::actors
