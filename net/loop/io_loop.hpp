// The one thread of a node that waits for sockets and timers; waiting callers may take its place.
#pragma once

#include <millrace/core/future.hpp>
#include <millrace/core/status.hpp>

#include <cstdint>
#include <functional>
#include <memory>

namespace millrace::net {

struct io_loop_options {
  /// Longest time to poll before sleeping, after something happened. 0 never polls. The loop halves
  /// its own bound whenever polling finds nothing and doubles it when it does.
  std::uint32_t poll_us = 50;
};

/// Waits for descriptors and timers and runs their callbacks, one at a time.
///
/// *Problem*: one thread must own each callback's data, yet at 4 KiB a hand-over between threads
/// costs more than the work. So the loop is a *role*: its own thread has it while nobody waits; a
/// thread inside `help` (waiting for a future) takes it over and reads the sockets itself. Whoever
/// has the role, callbacks never run at the same time.
///
/// Threads: every function from any thread unless it says otherwise. Callbacks must not block.
class io_loop : public progress, public std::enable_shared_from_this<io_loop> {
public:
  /// Starts the thread. Errors: `io_error`, `no_space` (descriptors).
  static result<std::shared_ptr<io_loop>> start(io_loop_options options);

  /// Runs `f` on the loop soon. Never runs it before returning. Dropped after `stop`.
  virtual void post(std::function<void()> f) = 0;

  /// Runs `f` on the loop after `delay_ms`; the number cancels it.
  virtual std::uint64_t run_after(std::uint32_t delay_ms, std::function<void()> f) = 0;
  virtual void cancel_timer(std::uint64_t timer) = 0;

  /// Calls `f(epoll events)` on the loop when `fd` is ready. `events` as for epoll,
  /// level-triggered. On the loop only (use `post`).
  virtual status watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> f) = 0;
  virtual status rewatch(int fd, std::uint32_t events) = 0;
  virtual void unwatch(int fd) = 0;

  /// True on the thread that has the role now.
  virtual bool on_loop() const noexcept = 0;

  /// Counts operations whose answer the loop shall notice at once even though a helper has just
  /// left.
  virtual void expect(std::int64_t change) noexcept = 0;

  /// Ends the thread, drops what is posted, and returns when no callback runs any more. Idempotent.
  /// Not from a callback.
  virtual void stop() = 0;
};

} // namespace millrace::net
