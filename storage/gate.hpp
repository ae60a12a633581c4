// Counts operations under way, so that closing can wait for them. Used by every kind of bucket.
#pragma once

#include <millrace/core/clock.hpp>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

namespace millrace::storage {

/// *Problem*: closing must wait for the last operation, and operations end on many threads and in
/// many ways. Each operation holds a ticket, and closing waits until the last ticket is destroyed.
class gate {
public:
  using ticket = std::shared_ptr<void>;

  /// Returns a ticket for one operation; null after `close`.
  ticket enter() {
    std::lock_guard guard{state_->mutex};
    if (state_->closed)
      return nullptr;
    ++state_->inside;
    return {static_cast<void*>(state_.get()), [state = state_](void*) {
              // Notify under the lock: the waiter may destroy the gate as soon as it sees zero.
              std::lock_guard leaving{state->mutex};
              if (--state->inside == 0)
                state->empty.notify_all();
            }};
  }

  /// Refuses tickets from now on.
  void close() {
    std::lock_guard guard{state_->mutex};
    state_->closed = true;
  }

  /// Waits until all tickets are destroyed. Returns how many are left at the deadline.
  std::uint64_t wait_empty(time_point deadline) {
    std::unique_lock guard{state_->mutex};
    wait_until(state_->empty, guard, deadline, [this] { return state_->inside == 0; });
    return state_->inside;
  }

private:
  struct state {
    std::mutex mutex;
    std::condition_variable empty;
    bool closed = false;
    std::uint64_t inside = 0;
  };
  std::shared_ptr<state> state_ = std::make_shared<state>();
};

} // namespace millrace::storage
