// Lends staging memory for windows, first come, first served. Called by reservations and readers of
// kinds that store on a disk.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/core/status.hpp>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace millrace::storage::io {

/// *Problem*: many operations share little memory, and each needs several windows. An operation
/// that kept some memory while it waited for more could wait for itself, or for another one that
/// does the same.
///
/// *Rule*: the bucket asks for a window's memory in one block and holds none while it waits. A
/// caller that was lent a window finishes it (commits it, or reads it and drops `hold`) without
/// waiting for another one. Then every window is returned, and the longest waiting request is
/// served next.
class staging_queue {
public:
  /// `owner`: named in the errors after `stop`.
  staging_queue(
    std::shared_ptr<memory_source> memory, std::uint32_t waiting_max, std::string owner);
  ~staging_queue() { stop(); }

  /// Lends a block. `done` runs on the queue's thread.
  /// `asker`: once it is destroyed, the wait ends with `cancelled`.
  /// Errors: `no_space` for more than the memory has in total; `busy` when too many requests wait.
  void acquire(std::uint64_t size_bytes, std::weak_ptr<void> asker, completion<memory_block> done);

  /// Checks again whether askers are destroyed. Any thread.
  void nudge();

  /// Ends every wait with `unavailable`.
  void stop();

private:
  struct waiter {
    std::uint64_t size_bytes;
    std::weak_ptr<void> asker;
    completion<memory_block> done;
  };

  // Outlives the queue while memory is lent, or while its thread ends by itself.
  struct shared : std::enable_shared_from_this<shared> {
    std::shared_ptr<memory_source> memory;
    std::string owner;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<waiter> waiting;
    bool returned = false;
    bool asker_gone = false;
    bool stopping = false;

    void wake();
    void run();
    void run_simulated();
    void end_gone();
    bool serve_first();
    result<memory_block> lend(std::uint64_t size_bytes);
  };

  std::shared_ptr<shared> shared_ = std::make_shared<shared>();
  std::uint32_t waiting_max_;
  std::thread thread_;
};

} // namespace millrace::storage::io
