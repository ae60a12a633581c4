// A completion that runs once, however often it is called.
// The fabric puts it between drivers and callers.
#pragma once

#include <millrace/core/status.hpp>

#include <atomic>
#include <memory>
#include <utility>

namespace millrace::transport {

/// Passes the first outcome on to `done` and calls `again()` for every later one.
///
/// *Problem*: callers count their transfers by completions. A driver may report one twice: a device
/// repeats a work completion, or a loss is noticed while the answer is on its way. The second
/// report would end an operation whose other windows are still being filled, and publish bytes that
/// never came.
/// Threads: several threads may call copies at once. `done` is moved out before it runs, so what it
///          owns does not outlive it in the copies that a driver keeps.
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
