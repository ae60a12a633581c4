// The threads for calls that wait in the kernel: making and connecting queue pairs.
// Made by the driver.
#pragma once

#include <millrace/core/status.hpp>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::transport::verbs {

/// Runs posted functions: those of one lane in order, one at a time; different lanes in parallel.
///
/// *Problem*: if a peer's network does not answer, connecting a queue pair waits up to a second in
/// the kernel, and is tried again and again. With a lane for each peer, such a peer occupies one
/// thread, however many rails it has. Retries go last and never take the last thread, so that new
/// peers are connected even while others do not answer.
/// Threads: one at the start; more when there is work and no thread is idle, up to `threads_max`.
class setup_pool {
public:
  /// Starts the pool.
  /// Errors:  `no_space` when the process may not have another thread.
  static result<std::shared_ptr<setup_pool>> start(std::uint32_t threads_max);
  ~setup_pool() { stop(); }

  enum class turn : std::uint8_t { first, again };

  /// Runs `f`; drops it after `stop`. `lane` names the lane by address and is only compared.
  /// Threads: any.
  void post(const void* lane, turn when, std::function<void()> f);
  /// Drops the functions that have not begun and waits for the others. Must not be called by one of
  /// them.
  void stop();

private:
  struct task {
    turn when = turn::first;
    std::function<void()> run;
  };
  struct lane_tasks {
    std::deque<task> waiting;
    bool running = false;
  };
  using lanes = std::map<const void*, lane_tasks>;

  explicit setup_pool(std::uint32_t threads_max) : threads_max_(threads_max) {}
  status add_thread();
  void run();
  void line_up(const void* lane, turn when);
  bool may_begin(turn when) const;
  bool has_due() const { return may_begin(turn::first) || may_begin(turn::again); }
  void run_one(std::unique_lock<std::mutex>& guard);

  const std::uint32_t threads_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  lanes lanes_;
  std::deque<const void*> due_[2]; // lanes that wait for a thread, by the turn of their first task
  std::uint32_t again_running_ = 0;
  std::uint32_t idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

} // namespace millrace::transport::verbs
