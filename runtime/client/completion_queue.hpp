// A queue of numbers that stand for futures, and a descriptor that says when one has become ready.
// Used by programs with an event loop of their own, and by bindings for other languages.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/core/future.hpp>
#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace millrace {

/// Receives a number of the caller's, a *token*, for each future that becomes ready.
///
/// *Problem*: an event loop can neither block in `future::get` nor let `future::then` run its code
/// on the runtime's threads. Here the runtime's threads only put a number into a queue. All of the
/// caller's code runs on the caller's threads.
///
/// Tokens come in the order in which their futures become ready. Two futures may have one token.
/// No thread has to wait for a future: while none does, the runtime's own thread `mr.loop` runs the
/// I/O loop. It takes the loop over at once when a thread that waited leaves while answers are
/// outstanding, and within some 3 ms otherwise. So a program may only ever watch the descriptor.
/// Copies share the queue. The last copy closes it, at any time: tokens of futures that become
/// ready later are dropped. In a forked child the queue still belongs to the parent: no token
/// comes.
/// Threads: any.
class completion_queue {
public:
  /// Makes a queue that holds at most so many tokens, of futures that are not ready yet and of
  /// those that are ready and were not taken.
  /// Errors:  `io_error` when the process or the system has no descriptor left; `no_space`.
  static result<completion_queue> open(std::uint32_t outstanding_max = 65'536);

  /// Puts `token` into the queue when the future is ready, whether it has a value or an error; at
  /// once if it is ready already. The queue does not keep the future: keep a copy, whose `result`
  /// then returns at once. A future cannot be taken back, but it can be cancelled.
  /// Errors:  `busy` when the queue has its number of tokens. Take some, then try again.
  ///          `unavailable` in a forked child of the process that opened the queue.
  template <class T>
  [[nodiscard]] status post_when_ready(const future<T>& f, std::uint64_t token) const {
    auto full = take_place();
    if (full.ok())
      f.then([queue = std::weak_ptr{state_}, token](const result<T>&) { put(queue, token); });
    return full;
  }

  /// Returns why the queue gives no tokens, now or later.
  /// Errors:  `unavailable` in a forked child of the process that opened the queue.
  [[nodiscard]] status refusal() const;

  /// Moves tokens out of the queue, as many as there are and have room in `tokens`, and returns
  /// their number. Does not block.
  std::size_t poll(std::span<std::uint64_t> tokens) const;

  /// Does what `poll` does, but waits for the first token, until the deadline. Returns 0 when none
  /// has come. Unlike one in `future::get`, the thread does no I/O for the runtime meanwhile.
  std::size_t wait(std::span<std::uint64_t> tokens, time_point deadline) const;

  /// Returns the descriptor, an eventfd, which is readable exactly while there are tokens to take.
  /// Watch it by `poll`, `epoll` or the like; do not read it, write it or close it. It becomes
  /// readable when a token comes into the empty queue: one that watches it edge-triggered takes
  /// tokens until `poll` returns fewer than there was room for. It lives as long as the queue.
  int descriptor() const noexcept;

private:
  struct state;
  explicit completion_queue(std::shared_ptr<state> s) : state_(std::move(s)) {}

  status take_place() const;
  static void put(const std::weak_ptr<state>& queue, std::uint64_t token);

  std::shared_ptr<state> state_;
};

} // namespace millrace
