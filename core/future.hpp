// The future that every operation of the public API returns at once, and its promise. Used by
// programs and by the runtime.
#pragma once

#include <millrace/core/assert.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/gathering.hpp>
#include <millrace/core/process_mark.hpp>
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

/// Lets a thread that waits for a future do the runtime's I/O in the meantime.
///
/// *Problem*: an I/O thread that is woken by a reply and then wakes the waiting thread costs two
/// wake-ups, which at 4 KiB are most of the latency. A waiting thread that reads the socket itself
/// needs one wake-up, or none while it polls.
class progress {
public:
  virtual ~progress() = default;

  /// Does I/O until `done()` holds or `deadline` passes. Returns at once when another thread does
  /// the I/O already; the caller then waits the ordinary way.
  virtual void help(const std::function<bool()>& done, time_point deadline) = 0;

  /// Makes a thread inside `help` check its `done()` again. Any thread; never blocks.
  virtual void nudge() noexcept = 0;

  /// Says that somebody needs an outcome, and that no thread may come to `help`: the I/O must go on
  /// at once. Any thread; never blocks.
  virtual void attend() noexcept {}
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
  const process_mark made_in;

  // True if nothing is left to wait for. What completes this one does not run in a forked child.
  bool settled() const noexcept {
    return ready.load(std::memory_order_acquire) || !made_in.is_here();
  }

  // Call it when this is settled. In a forked child it takes no lock, since a thread of the parent
  // may have held it.
  const result<T>& outcome() const {
    if (ready.load(std::memory_order_acquire))
      return *value;
    static const result<T> lost = fail(
      errc::unavailable,
      "the operation belongs to the process that forked this one; ask again with a client that is "
      "opened here");
    return lost;
  }

  // The first value wins. A late reply after a deadline or a cancellation is dropped here.
  bool set(result<T> outcome) {
    std::vector<std::function<void(const result<T>&)>> run;
    {
      std::lock_guard guard{mutex};
      if (value)
        return false;
      // Cancelling may make the operation fail with another error first. The caller cancelled, so
      // it gets `cancelled`.
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
    if (settled())
      return true;
    if (io) {
      helping.fetch_add(1);
      io->help([this] { return ready.load(std::memory_order_acquire); }, deadline);
      helping.fetch_sub(1);
    }
    std::unique_lock guard{mutex};
    return millrace::wait_until(changed, guard, deadline, [this] { return value.has_value(); });
  }
};

} // namespace detail

/// The outcome of an operation that may still be running.
///
/// Every operation has a deadline, so a future always becomes ready. Dropping a future does not
/// stop its operation. Copies share the outcome. In a forked child a future of the parent that is
/// not ready yet gives `unavailable` at once.
/// Threads: any; several may wait on copies of one future.
template <class T>
class [[nodiscard]] future {
public:
  using state_type = detail::future_state<T>;

  future() = default;
  explicit future(std::shared_ptr<state_type> state) : state_(std::move(state)) {}

  bool valid() const noexcept { return state_ != nullptr; }
  bool ready() const noexcept { return state_->settled(); }

  /// Waits and returns the value. Throws `millrace::error` when the operation failed.
  T get() const {
    auto& outcome = wait();
    if (!outcome)
      throw error{outcome.error()};
    if constexpr (!std::is_void_v<T>)
      return *outcome;
  }

  /// Waits and returns the value, or the status that says why there is none. Does not throw.
  [[nodiscard]] const millrace::result<T>& result() const& { return wait(); }
  [[nodiscard]] millrace::result<T> result() && { return wait(); }

  /// Waits at most `timeout` and returns whether the outcome is there. The operation goes on either
  /// way, also between two waits. So a thread that must look at signals waits in slices, of 10 ms
  /// say. A signal whose handler returns does not end a wait.
  template <class Rep, class Period>
  bool wait_for(std::chrono::duration<Rep, Period> timeout) const {
    return state_->wait_until(steady_clock::now() + timeout);
  }

  /// Calls `f(const result<T>&)` with the outcome: at once if it is there, otherwise on the thread
  /// that completes the operation. `f` must neither block nor throw.
  template <class F>
  void then(F f) const {
    if (chain(std::move(f)) && state_->io)
      state_->io->attend();
  }
  /// The same where `f` makes another future ready: who waits for that one does the I/O, if its
  /// promise has the same `io()`. Returns whether `f` is still to be called.
  template <class F>
  bool chain(F f) const {
    if (!state_->settled()) {
      std::lock_guard guard{state_->mutex};
      if (!state_->value) {
        state_->continuations.emplace_back(std::move(f));
        return true;
      }
    }
    f(state_->outcome());
    return false;
  }

  /// Returns who does the I/O of the operation while a thread waits; may be null.
  std::shared_ptr<progress> io() const { return state_->io; }

  /// Cancels the operation: the outcome becomes `cancelled` unless it is there already. After this
  /// call returns, no thread touches the operation's tensors. A second caller waits for the first.
  void cancel() const {
    if (!state_->made_in.is_here())
      return;
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

  /// `co_await future` gives a `result<T>`. The coroutine resumes on the thread that completes the
  /// operation.
  auto operator co_await() const {
    struct awaiter {
      std::shared_ptr<state_type> state;
      bool await_ready() const noexcept { return state->settled(); }
      void await_suspend(std::coroutine_handle<> handle) {
        future{state}.then([handle](const millrace::result<T>&) { handle.resume(); });
      }
      millrace::result<T> await_resume() const { return state->outcome(); }
    };
    return awaiter{state_};
  }

private:
  const millrace::result<T>& wait() const {
    MILLRACE_ASSERT(state_);
    while (!state_->wait_until(steady_clock::now() + std::chrono::hours{1})) {
    }
    return state_->outcome();
  }

  std::shared_ptr<state_type> state_;
};

/// The producing end of a future. Copies share one outcome. If the last copy is destroyed before an
/// outcome is set, the future fails with `internal`, so that no thread waits for ever.
template <class T>
class promise {
public:
  promise() : promise(nullptr) {}
  explicit promise(std::shared_ptr<progress> io) : guard_(std::make_shared<guard>()) {
    guard_->state->io = std::move(io);
  }

  future<T> get_future() const { return future<T>{guard_->state}; }

  /// Sets the outcome. Returns false if there was one already.
  bool set(result<T> outcome) const { return guard_->state->set(std::move(outcome)); }

  /// Sets what runs when the caller cancels, before the outcome is set. Returns false when it is
  /// too late: the outcome is there, or the caller is cancelling. The operation must not be started
  /// then.
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

/// Returns a future that is ready.
template <class T>
future<T> ready_future(result<T> outcome) {
  promise<T> p;
  p.set(std::move(outcome));
  return p.get_future();
}

/// Returns a future that is ready when all of `futures` are. It holds every outcome, in order. Who
/// waits for it does the I/O of the first one.
template <class T>
future<std::vector<result<T>>> when_all(const std::vector<future<T>>& futures) {
  using outcomes = std::vector<result<T>>;
  if (futures.empty())
    return ready_future<outcomes>(outcomes{});
  promise<outcomes> done{futures.front().io()};
  auto all = std::make_shared<gathering<result<T>>>(
    futures.size(), [done](result<outcomes> gathered) { done.set(std::move(gathered)); });
  for (std::size_t i = 0; i < futures.size(); ++i)
    futures[i].chain([all, i](const result<T>& outcome) {
      all->arrived(i, result<result<T>>{tl::in_place, outcome});
    });
  return done.get_future();
}

} // namespace millrace
