// Staging memory, shared by the operations of processes. Used for windows and for snapshots.
#pragma once

#include <millrace/core/fair_shares.hpp>
#include <millrace/core/memory.hpp>
#include <millrace/core/status.hpp>

#include <cstdint>
#include <memory>
#include <mutex>

namespace millrace::actors {

/// Lends blocks of a memory source that nobody else uses. Each process gets its share of the bytes,
/// as `fair_shares` says. Who has its share waits until memory comes back, and the processes take
/// turns.
///
/// *Problem*: many operations share little memory, and each needs blocks again and again. None may
/// starve, not even when the trainer of another one is stopped. An operation that kept some memory
/// while it waited for more could wait for itself, or for another one that does the same.
///
/// *Rule*: an operation asks for one block at a time for each part of its work, and finishes this
/// part without waiting for another block. Waiting blocks no thread.
/// Threads: any. Made by `make_shared` only.
class staging_lender : public std::enable_shared_from_this<staging_lender> {
public:
  explicit staging_lender(std::shared_ptr<memory_source> memory)
    : memory_(std::move(memory)), shares_(memory_->capacity_bytes()) {}

  /// Lends a block on a border of 4096 bytes, now or when memory has come back. Dropping the last
  /// copy of its `owner` returns it; if nobody wants the block any more, the next request gets it.
  /// `granted` runs with no lock held.
  /// Errors: `no_space` for more than the memory has in total.
  void ask(party who, std::uint64_t size_bytes, completion<memory_block> granted);

private:
  struct request {
    std::uint64_t size_bytes = 0;
    completion<memory_block> granted;
    memory_block block;
  };

  // Lends to those that wait, in turns, and then calls them.
  void serve(std::unique_lock<std::mutex> lock);
  memory_block lend(const party& who, memory_block block);

  const std::shared_ptr<memory_source> memory_;
  std::mutex mutex_;
  fair_shares shares_;
  fair_queue<request> waiting_;
};

} // namespace millrace::actors
