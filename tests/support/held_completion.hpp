// A completion that tests wait for, and that asserts that it runs once.
// Used by tests of asynchronous calls.
#pragma once

#include <millrace/core/assert.hpp>
#include <millrace/core/status.hpp>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace millrace::testing {

template <class T>
class held_completion {
public:
  completion<T> callback() {
    return [s = state_](result<T> outcome) {
      std::lock_guard guard{s->mutex};
      MILLRACE_ASSERT(!s->ran);
      s->ran = true;
      s->outcome.emplace(std::move(outcome));
      s->changed.notify_all();
    };
  }

  bool ready() const {
    std::lock_guard guard{state_->mutex};
    return state_->ran;
  }

  /// Waits for the outcome, two minutes at most: some completions come after a thousand checks of a
  /// pool.
  result<T> take() {
    std::unique_lock guard{state_->mutex};
    auto came = state_->changed.wait_for(
      guard, std::chrono::seconds{120}, [&] { return state_->outcome.has_value(); });
    if (!came)
      return fail(errc::deadline_exceeded, "the completion was not run");
    auto outcome = std::move(*state_->outcome);
    state_->outcome.reset();
    return outcome;
  }

private:
  struct state {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<result<T>> outcome;
    bool ran = false;
  };
  std::shared_ptr<state> state_ = std::make_shared<state>();
};

/// Returns the error's text, for the messages of checks (which are made even when the check holds).
template <class T>
std::string why(const result<T>& outcome) {
  return outcome ? "ok" : outcome.error().to_string();
}

/// Runs `start(completion)` and waits for the outcome.
template <class T, class F>
result<T> await(F start) {
  held_completion<T> held;
  start(held.callback());
  return held.take();
}

} // namespace millrace::testing
