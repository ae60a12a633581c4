// A completion that gets through once, however often it is called. The fabric puts it between drivers and callers.
#pragma once

#include <millrace/core/status.hpp>

#include <atomic>
#include <memory>
#include <utility>

namespace millrace::transport {

/// Passes the first outcome on to `done` and calls `again()` for every later one.
///
/// *Problem*: callers count their transfers by completions. A driver that reports one twice (a device that repeats
/// a work completion, a loss noticed while the answer was on its way) would end an operation whose other
/// windows are still being filled, and publish bytes that never came.
/// Threads: copies may be called from several at once. `done` is let go of before it runs: what it holds does not
/// wait for copies that a driver keeps.
template <class T, class Again>
completion<T> once(completion<T> done, Again again) {
  struct state {
    std::atomic<bool> ran = false;
    completion<T> done;
    Again again;
    state(completion<T> d, Again a) : done(std::move(d)), again(std::move(a)) {}
  };
  return [s = std::make_shared<state>(std::move(done), std::move(again))](result<T> outcome) {
    if (s->ran.exchange(true))
      return s->again();
    auto first = std::exchange(s->done, nullptr);
    first(std::move(outcome));
  };
}

} // namespace millrace::transport
