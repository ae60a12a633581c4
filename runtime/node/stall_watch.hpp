// Says when a node's I/O loop stands still, and in which callback. Internal, used by `node`.
#pragma once

#include <millrace/net/loop/io_loop.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace millrace::runtime {

/// Finds out whether a loop stands still, from what it is seen doing now and then.
class stall_finder {
public:
  explicit stall_finder(std::chrono::milliseconds after) : after_(after) {}

  /// Returns a text for the log, if there is news: the loop has run one callback for `after`, that
  /// time has doubled since the last text, or the loop goes on.
  std::optional<std::string> look(const activity::sample& seen, time_point now);

  std::uint64_t stalls() const noexcept { return stalls_; }

private:
  std::chrono::milliseconds after_;
  activity::sample last_;
  time_point since_{};               // it has been seen in this callback
  std::chrono::milliseconds next_{}; // how long it stands when the next text is due
  std::uint64_t stalls_ = 0;
};

/// Watches a loop by a thread of its own, which sleeps between looks.
///
/// *Problem*: one callback that blocks stops all requests, deadlines and heartbeats of the node.
/// Nothing else shows which one it is.
class stall_watch {
public:
  /// Looks four times within `after`, which is above 0. The loop must tell what it is doing.
  stall_watch(
    std::string node, std::shared_ptr<net::io_loop> loop, std::chrono::milliseconds after);
  ~stall_watch();
  stall_watch(const stall_watch&) = delete;
  stall_watch& operator=(const stall_watch&) = delete;

  /// Returns how often the loop has stood still. Any thread.
  std::uint64_t stalls() const;

private:
  void run(std::chrono::milliseconds between);

  const std::string node_;
  const std::shared_ptr<net::io_loop> loop_;
  mutable std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  stall_finder finder_;
  std::thread thread_;
};

} // namespace millrace::runtime
