// What every operation of the public API returns at once, and the promise behind it.
#pragma once

#include <millrace/core/assert.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/status.hpp>

#include <atomic>
#include <condition_variable>
#include <coroutine>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace {

/// Lets a thread that waits for a future do the runtime's I/O meanwhile.
///
/// *Problem*: a reply that first wakes an I/O thread, which then wakes the waiting thread, costs two
/// wake-ups; at 4 KiB they are most of the latency. A waiting thread that reads the socket itself
/// needs one, or none while it polls.
class progress {
public:
  virtual ~progress() = default;

  /// Makes progress until `done()` holds, `deadline` passes, or another thread already drives the
  /// I/O (then it returns at once and the caller waits the ordinary way).
  virtual void help(const std::function<bool()>& done, time_point deadline) = 0;

  /// Makes a thread inside `help` look at its `done()` again. Any thread, never blocks.
  virtual void nudge() noexcept = 0;
};

namespace detail {

template <class T>
struct future_state {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<result<T>> value;
  std::atomic<bool> ready = false;
  std::vector<std::function<void(const result<T>&)>> continuations;
  std::function<void()> on_cancel;
  bool cancelling = false;
  std::shared_ptr<progress> io;
  std::atomic<int> helping = 0;

  // First value wins: a late reply after a deadline or a cancellation is dropped here.
  bool set(result<T> outcome) {
    std::vector<std::function<void(const result<T>&)>> run;
    {
      std::lock_guard guard{mutex};
      if (value)
        return false;
      // Undoing an operation makes it fail in its own way first; what the caller asked for is what it reads.
      if (cancelling && !outcome)
        outcome = fail(errc::cancelled, "cancelled by the caller");
      value.emplace(std::move(outcome));
      run.swap(continuations);
      on_cancel = nullptr;
      ready.store(true);
    }
    changed.notify_all();
    if (io && helping.load() > 0)
      io->nudge();
    for (auto& f : run)
      f(*value);
    return true;
  }

  bool wait_until(time_point deadline) {
    if (ready.load(std::memory_order_acquire))
      return true;
    if (io) {
      helping.fetch_add(1);
      io->help([this] { return ready.load(std::memory_order_acquire); }, deadline);
      helping.fetch_sub(1);
    }
    std::unique_lock guard{mutex};
    return changed.wait_until(guard, deadline, [this] { return value.has_value(); });
  }
};

} // namespace detail

/// The outcome of an operation that may still be running.
///
/// Every operation has a deadline of its own, so a future always becomes ready. Dropping one
/// detaches: the operation goes on, nobody is told. Copies share the outcome.
/// Threads: any; several may wait on copies of one future.
template <class T>
class [[nodiscard]] future {
public:
  using state_type = detail::future_state<T>;

  future() = default;
  explicit future(std::shared_ptr<state_type> state) : state_(std::move(state)) {}

  bool valid() const noexcept { return state_ != nullptr; }
  bool ready() const noexcept { return state_->ready.load(std::memory_order_acquire); }

  /// Waits and returns the value. Throws `millrace::error` when the operation failed.
  T get() const {
    auto& outcome = wait();
    if (!outcome)
      throw error{outcome.error()};
    if constexpr (!std::is_void_v<T>)
      return *outcome;
  }

  /// Waits and returns the value or the status. Does not throw.
  [[nodiscard]] const millrace::result<T>& result() const& { return wait(); }
  [[nodiscard]] millrace::result<T> result() && { return wait(); }

  /// Waits at most `timeout`; true once the outcome is there. The operation goes on either way.
  template <class Rep, class Period>
  bool wait_for(std::chrono::duration<Rep, Period> timeout) const {
    return state_->wait_until(steady_clock::now() + timeout);
  }

  /// Calls `f(const result<T>&)` once the outcome is there: at once if it is, else on the thread that
  /// completes the operation. `f` must neither block nor throw.
  template <class F>
  void then(F f) const {
    {
      std::lock_guard guard{state_->mutex};
      if (!state_->value) {
        state_->continuations.emplace_back(std::move(f));
        return;
      }
    }
    f(*state_->value);
  }

  /// Gives the operation up: the outcome becomes `cancelled` unless it is there already. When this
  /// returns, nothing touches the operation's tensors any more; whoever cancels second waits for the first.
  void cancel() const {
    std::function<void()> undo;
    {
      std::unique_lock guard{state_->mutex};
      if (std::exchange(state_->cancelling, true))
        return state_->changed.wait(guard, [this] { return state_->value.has_value(); });
      undo.swap(state_->on_cancel);
    }
    if (undo)
      undo();
    state_->set(fail(errc::cancelled, "cancelled by the caller"));
  }

  /// `co_await future` gives a `result<T>`; the coroutine resumes on the completing thread.
  auto operator co_await() const {
    struct awaiter {
      std::shared_ptr<state_type> state;
      bool await_ready() const noexcept { return state->ready.load(std::memory_order_acquire); }
      void await_suspend(std::coroutine_handle<> handle) {
        future{state}.then([handle](const millrace::result<T>&) { handle.resume(); });
      }
      millrace::result<T> await_resume() const { return *state->value; }
    };
    return awaiter{state_};
  }

private:
  const millrace::result<T>& wait() const {
    MILLRACE_ASSERT(state_);
    while (!state_->wait_until(steady_clock::now() + std::chrono::hours{1})) {
    }
    return *state_->value;
  }

  std::shared_ptr<state_type> state_;
};

/// The producing end. Copies share one outcome; if the last copy goes without having set one, the
/// future fails with `internal`, so that no waiter is left alone.
template <class T>
class promise {
public:
  promise() : promise(nullptr) {}
  explicit promise(std::shared_ptr<progress> io) : guard_(std::make_shared<guard>()) {
    guard_->state->io = std::move(io);
  }

  future<T> get_future() const { return future<T>{guard_->state}; }

  /// Sets the outcome; false if there was one already.
  bool set(result<T> outcome) const { return guard_->state->set(std::move(outcome)); }

  /// Runs when the caller cancels, before the outcome is set. False when it came too late to be kept: the outcome is
  /// there, or the caller is cancelling; then nothing may be begun any more.
  [[nodiscard]] bool on_cancel(std::function<void()> f) const {
    std::lock_guard lock{guard_->state->mutex};
    if (guard_->state->value || guard_->state->cancelling)
      return false;
    guard_->state->on_cancel = std::move(f);
    return true;
  }

private:
  struct guard {
    std::shared_ptr<detail::future_state<T>> state = std::make_shared<detail::future_state<T>>();
    ~guard() { state->set(fail(errc::internal, "the operation was dropped without an outcome")); }
  };
  std::shared_ptr<guard> guard_;
};

/// A future that is ready from the start.
template <class T>
future<T> ready_future(result<T> outcome) {
  promise<T> p;
  p.set(std::move(outcome));
  return p.get_future();
}

/// Ready when all of them are; holds every outcome, in order.
template <class T>
future<std::vector<result<T>>> when_all(const std::vector<future<T>>& futures) {
  struct gathering {
    std::mutex mutex;
    std::vector<result<T>> outcomes;
    std::size_t missing;
    promise<std::vector<result<T>>> done;
  };
  auto g = std::make_shared<gathering>();
  g->missing = futures.size();
  g->outcomes.assign(futures.size(), fail(errc::internal, "not ready"));
  auto out = g->done.get_future();
  if (futures.empty())
    g->done.set(std::vector<result<T>>{});
  for (std::size_t i = 0; i < futures.size(); ++i)
    futures[i].then([g, i](const result<T>& outcome) {
      bool last;
      {
        std::lock_guard lock{g->mutex};
        g->outcomes[i] = outcome;
        last = --g->missing == 0;
      }
      if (last)
        g->done.set(std::move(g->outcomes));
    });
  return out;
}

} // namespace millrace
