// The threads that do the I/O of a bucket on a disk or a device, or of the step flusher, and run
// its completions. Used by the engine of such a bucket, and by the step flusher.
#pragma once

#include <millrace/core/status.hpp>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace millrace::storage::io {

/// Threads: any may post. On a simulated machine the jobs run later, in their order.
class io_pool {
public:
  /// Called with `unavailable` when the pool has stopped; it then does nothing but report that.
  using job = std::function<void(const status&)>;

  /// `owner`: named in the error of jobs that come after `stop`.
  io_pool(std::uint32_t threads, std::string owner);
  ~io_pool() { stop(); }

  void post(job work);

  /// Posts the parts of one operation. `done` gets the first error, on the thread of the last part.
  void post_all(std::vector<std::function<status()>> parts, std::function<void(status)> done);

  /// Runs the jobs that were posted, then ends the threads. A job may call it; its own thread then
  /// ends by itself.
  void stop();

  /// As `stop`, but does not wait for jobs that run: their threads end by themselves.
  void abandon();

private:
  void refuse();

  // Shared with the threads, which outlive the pool when one of them drops it.
  struct queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<job> jobs;
    bool stopping = false;
    // On a simulated machine: threads that run no job, and jobs that found none.
    std::uint32_t idle = 0;
    std::uint32_t late = 0;
  };

  static void run(const std::shared_ptr<queue>& jobs);
  static void run_simulated(const std::shared_ptr<queue>& jobs);
  static void run_one(queue& jobs, std::unique_lock<std::mutex>& guard);

  std::shared_ptr<queue> queue_ = std::make_shared<queue>();
  std::vector<std::thread> threads_;
  std::string owner_;
};

/// Starts a thread for one long job. On a simulated machine the job runs later, at once.
std::thread start_thread(std::function<void()> job);

/// Joins a thread, or detaches it when it is the calling one.
void join_or_detach(std::thread& thread);

} // namespace millrace::storage::io
