// The threads of a kind that rests on a disk or a device. What touches it, and every completion, runs
// on them.
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

/// Threads: any may post.
class io_pool {
public:
  /// Told `unavailable` instead of being run when the pool has stopped.
  using job = std::function<void(const status&)>;

  /// `owner`: what is closed once the pool has stopped, in words.
  io_pool(std::uint32_t threads, std::string owner);
  ~io_pool() { stop(); }

  void post(job work);

  /// Posts the parts of one operation; `done` gets the first error, on the thread of the last part.
  void post_all(std::vector<std::function<status()>> parts, std::function<void(status)> done);

  /// Runs what was posted, then ends the threads. A job may call it: its own thread ends by itself.
  void stop();

private:
  // Shared with the threads, which outlive the pool when one of them drops it.
  struct queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<job> jobs;
    bool stopping = false;
  };

  static void run(const std::shared_ptr<queue>& jobs);

  std::shared_ptr<queue> queue_ = std::make_shared<queue>();
  std::vector<std::thread> threads_;
  std::string owner_;
};

/// Joins a thread, or lets it go when it is the calling one.
void join_or_detach(std::thread& thread);

/// Collects the outcomes of jobs that together make one operation; the last one reports.
class job_group {
public:
  job_group(std::size_t jobs, std::function<void(status)> done)
    : missing_(jobs), done_(std::move(done)) {}

  void finished(const status& outcome);

private:
  std::mutex mutex_;
  std::size_t missing_;
  status first_error_;
  std::function<void(status)> done_;
};

} // namespace millrace::storage::io
