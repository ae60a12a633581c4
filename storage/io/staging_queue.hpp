// Lends staging memory for windows, in the order in which it was asked for. Asked by reservations
// and readers of kinds that rest on a disk.
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

/// *Problem*: many operations share little memory, and each needs several windows of it. One that
/// kept some while it waited for more could wait for itself, or for another that does the same.
///
/// *Rule*: the bucket asks for a window's memory in one piece and holds none while it waits; and
/// whoever was lent a window works it off (commits it, or reads it and drops `hold`) without
/// waiting for another one. Then every window comes back, and the longest waiting is served next.
class staging_queue {
public:
  /// `owner`: what is closed once the queue has stopped, in words.
  staging_queue(
    std::shared_ptr<memory_source> memory, std::uint32_t waiting_max, std::string owner);
  ~staging_queue() { stop(); }

  /// `done` runs on the queue's thread.
  /// `asker`: once it is gone, the wait ends with `cancelled`.
  /// Errors: `no_space` for more than the memory has in total; `busy` when too many wait.
  void acquire(std::uint64_t size_bytes, std::weak_ptr<void> asker, completion<memory_block> done);

  /// Looks again whether askers are gone. Any thread.
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
    void end_gone();
    bool serve_first();
    result<memory_block> lend(std::uint64_t size_bytes);
  };

  std::shared_ptr<shared> shared_ = std::make_shared<shared>();
  std::uint32_t waiting_max_;
  std::thread thread_;
};

} // namespace millrace::storage::io
