// Waits for a completion, with a deadline. Used by flushing and the command, whose threads may
// block.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/core/status.hpp>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace millrace::storage {

/// Runs `start(completion)` and returns the outcome. An outcome that comes after the deadline is
/// dropped.
/// Errors: `deadline_exceeded`; those of the outcome.
template <class T, class Start>
result<T> await(std::chrono::milliseconds deadline, Start start) {
  struct arrival {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<result<T>> outcome;
  };
  auto coming = std::make_shared<arrival>();
  start(completion<T>{[coming](result<T> outcome) {
    std::lock_guard guard{coming->mutex};
    coming->outcome.emplace(std::move(outcome));
    coming->changed.notify_all();
  }});
  std::unique_lock guard{coming->mutex};
  auto arrived = [&] { return coming->outcome.has_value(); };
  if (!wait_until(coming->changed, guard, steady_clock::now() + deadline, arrived))
    return fail(
      errc::deadline_exceeded, "the storage did not answer within {} ms", deadline.count());
  return std::move(*coming->outcome);
}

} // namespace millrace::storage
