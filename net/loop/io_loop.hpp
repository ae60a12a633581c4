// The thread that waits for sockets and timers; callers that wait for a future may take its place.
// Made by `platform`.
#pragma once

#include <millrace/core/activity.hpp>
#include <millrace/core/future.hpp>
#include <millrace/core/status.hpp>
#include <millrace/net/loop/shared_signal.hpp>

#include <cstdint>
#include <functional>
#include <memory>

namespace millrace::net {

struct io_loop_options {
  /// The longest time to poll after an event before sleeping. 0: never poll. The loop halves its
  /// current bound whenever polling finds nothing, and doubles it when polling finds something.
  std::uint32_t poll_us = 100;
};

/// Waits for descriptors and timers and runs their callbacks, one at a time.
///
/// *Problem*: one thread must own the data of the callbacks, yet for small messages (4 KiB) handing
/// work to another thread costs more than the work. So the loop is a *role*. Its own thread holds
/// the role while no caller waits. A thread inside `help` (waiting for a future) takes the role
/// over and reads the sockets itself. Callbacks never run concurrently.
///
/// Threads: every function from any thread unless it says otherwise. Callbacks must not block.
class io_loop : public progress, public std::enable_shared_from_this<io_loop> {
public:
  /// Starts the thread. Errors: `io_error`, `no_space` (descriptors).
  static result<std::shared_ptr<io_loop>> start(io_loop_options options);

  /// Runs `f` on the loop soon, never before returning. After `stop`, `f` is dropped.
  virtual void post(std::function<void()> f) = 0;

  /// The same, but `f` runs after `delay_ms`. Returns the number that cancels it.
  virtual std::uint64_t run_after(std::uint32_t delay_ms, std::function<void()> f) = 0;
  virtual void cancel_timer(std::uint64_t timer) = 0;

  /// Calls `f` with the epoll events on the loop while `fd` is ready (level-triggered). Call it on
  /// the loop only (use `post`).
  virtual status watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> f) = 0;
  virtual status rewatch(int fd, std::uint32_t events) = 0;
  virtual void unwatch(int fd) = 0;

  /// Calls the function that watches `fd` with no events while `signal` is raised, until the loop
  /// sleeps or `fd` is unwatched. Before it sleeps, the loop asks the signal for an event of `fd`.
  /// On the loop only.
  virtual void poll(int fd, shared_signal& signal) = 0;

  /// True on the thread that holds the role.
  virtual bool on_loop() const noexcept = 0;

  /// Returns what the holder of the role is doing, for another thread that watches it. Null: the
  /// loop does not tell.
  virtual const activity* doing() const noexcept { return nullptr; }

  /// Adds to the number of operations whose answers the loop must notice at once, even after a
  /// helper has left. Where one helper has come back again and again at once, and then does not,
  /// it takes up to 2 ms, unless somebody calls `attend`.
  virtual void expect(std::int64_t change) noexcept = 0;

  /// Ends the thread, drops the functions that wait, and returns when none is running. Idempotent.
  /// Not from a callback.
  virtual void stop() = 0;
};

} // namespace millrace::net
