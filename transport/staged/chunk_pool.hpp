// The staging memory of a process that owns device memory: chunks that are lent to peers.
// One pool for all peers of a fabric; used by `lending_side`.
#pragma once

#include <millrace/core/fair_shares.hpp>
#include <millrace/transport/copy/mover_pool.hpp>
#include <millrace/transport/memory/arena.hpp>
#include <millrace/transport/memory/region.hpp>
#include <millrace/transport/staged/staged_options.hpp>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

namespace millrace::transport::staged {

/// One part of the staging memory. Only its holder, and the peer to which it is lent, may touch it.
struct chunk {
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  std::uint64_t borrower = 0; // the borrower that has the regions' keys
  region readable;
  region writable;
  std::optional<party> holder; // whose share it counts to; empty while it is free
};

/// Lends chunks to processes, which share them as `fair_shares` says and take turns.
///
/// *Problem*: exposing memory anew for every chunk would cost a peer with RDMA devices a request
/// and a window each. So the regions of a chunk stay exposed while it goes back and forth with one
/// peer. Another peer gets new regions, only after the old ones are withdrawn and the bytes are
/// erased.
/// Threads: any. Chunks are handed out on a thread for devices. Made by `make_shared` only.
class chunk_pool : public std::enable_shared_from_this<chunk_pool> {
public:
  chunk_pool(const staged_options& options, std::shared_ptr<mover_pool> movers)
    : options_(options),
      count_(std::max<std::uint64_t>(options.size_bytes / options.chunk_bytes, 1)),
      movers_(std::move(movers)), shares_(count_) {}

  // The number of chunks once they are made.
  std::uint64_t chunks() const noexcept { return count_; }

  /// Returns a number for a new borrower, which is one connection.
  std::uint64_t new_borrower();

  /// Calls `use` with a chunk as soon as one is free and fits in the share of `who`, or with
  /// `no_space` when there will be none.
  void acquire(
    const party& who, std::uint64_t borrower, std::uint64_t request,
    std::function<void(result<chunk*>)> use);
  /// Forgets a request if it still waits.
  void cancel(std::uint64_t borrower, std::uint64_t request);
  /// `withdraw`: the regions must go first, since the peer or its device may still reach them.
  void give_back(chunk* c, bool withdraw);
  /// Returns the handle by which the borrower reaches the chunk.
  static bulk_handle lend(chunk& c, std::uint64_t borrower, access_mode how);
  /// Withdraws the regions of a borrower that has gone, soon, on another thread.
  void forget(std::uint64_t borrower);

  const std::shared_ptr<mover_pool>& movers() const noexcept { return movers_; }
  /// Pins the staging memory, before a device copies with a chunk.
  void pin_for(device_memory& device) { arena_->pin_for(device); }

  struct counts {
    std::size_t chunks = 0; // 0 before the first request
    std::size_t free = 0;
    std::size_t waiting = 0;
  };
  counts now() const;

private:
  struct request {
    party who;
    std::uint64_t borrower;
    std::uint64_t number;
    std::function<void(result<chunk*>)> use;
  };

  void post_serving(std::unique_lock<std::mutex>& lock);
  void serve_one();
  status make_arena();
  void put(chunk* c);

  const staged_options options_;
  const std::uint64_t count_;
  const std::shared_ptr<mover_pool> movers_;
  std::mutex making_;
  mutable std::mutex mutex_;
  fair_shares shares_;
  std::shared_ptr<arena> arena_;
  std::vector<std::unique_ptr<chunk>> chunks_;
  std::deque<chunk*> free_;
  fair_queue<request> waiting_;
  std::uint64_t borrowers_ = 0;
  std::set<std::uint64_t> live_; // borrowers that were not forgotten
  std::size_t servings_ = 0;     // posted and not begun
};

} // namespace millrace::transport::staged
