// One machine that holds a whole cluster: its processes, one clock, one thread, one seed. It runs
// the product's own nodes and clients. Used by tests that run clusters with many seeds.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/core/simulated_machine.hpp>
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/tests/support/dice.hpp>
#include <millrace/tests/support/seeds.hpp>

#include <caf/actor_system.hpp>
#include <caf/scheduler/test_coordinator.hpp>

#include <coroutine>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace millrace::sim {

using nanoseconds = std::chrono::nanoseconds;

using testing::demand;

class process;

/// A clock, and the events that it brings.
struct timeline {
  struct event {
    process* of;
    std::function<void()> run;
  };
  using event_key = std::pair<nanoseconds, std::uint64_t>; // when, and in which order

  nanoseconds now{1};
  std::map<event_key, event> events;
};

/// A process of the simulated machine. It ends by `world::kill` alone.
class process {
public:
  const std::string name;
  const std::uint32_t number;
  const peer_id id;

  bool alive() const noexcept { return !after_death_; }

private:
  friend class world;
  process(std::string n, std::uint32_t nr, const peer_id& i)
    : name(std::move(n)), number(nr), id(i) {}

  std::unique_ptr<timeline> after_death_; // null while it lives
  std::vector<caf::actor_system*> systems_;
};

/// Times at which things happen, and what happens.
///
/// Everything runs on the thread that calls `run_for` or `run_until`. Events of one instant happen
/// in the order in which they were made.
class world final : public simulated_machine {
public:
  explicit world(std::uint64_t seed);
  ~world() override;
  world(const world&) = delete;
  world& operator=(const world&) = delete;

  testing::dice random;

  process& start_process(const std::string& name);
  /// Ends a process: `on_death` functions run, and no one hears of it any more. It goes on in a
  /// time of its own while what it owned is destroyed by `as`; `bury` drops what is left.
  void kill(process& p);
  void bury(process& p);
  void on_death(std::function<void(process&)> f) { on_death_.push_back(std::move(f)); }

  /// Runs `f` as a process.
  template <class F>
  auto as(process& p, F f) {
    entered inside{*this, p};
    return f();
  }
  /// Returns null for an identity that no process has.
  process* find(const peer_id& id) const;
  process& current() const noexcept { return *current_; }

  /// Lets `f` happen in a process, `delay` from now, unless it is cancelled. If the process dies
  /// first, `f` happens in the time of its own, or is dropped when it is buried.
  std::uint64_t after(process& p, nanoseconds delay, std::function<void()> f);
  void cancel(std::uint64_t event);

  /// Lets time pass.
  void run_for(nanoseconds time);
  /// Returns the number of events so far, and a number that differs when they differed.
  std::uint64_t events() const noexcept { return happened_; }
  std::uint64_t trace() const noexcept { return trace_; }
  /// Returns the number of actors' timers that have come due so far.
  std::uint64_t timers() const noexcept { return timers_; }
  /// Prints what happens when one seed is repeated with MILLRACE_SIM_TRACE set.
  void say(const std::string& what);
  /// Adds to the trace.
  void note(std::uint64_t what) noexcept { trace_ = (trace_ ^ what) * 0x9e3779b97f4a7c15ull; }

  void add_system(caf::actor_system& system);
  void remove_system(caf::actor_system& system);

  // simulated_machine:
  nanoseconds now() noexcept override { return here().now; }
  std::uint64_t wall_clock_ns() noexcept override;
  const peer_id& this_peer() noexcept override { return current_->id; }
  std::uint32_t this_pid() noexcept override { return current_->number; }
  void fill_random(std::byte* data, std::size_t size_bytes) noexcept override;
  void run_later(std::function<void()> job, nanoseconds delay) override;
  bool run_until(const std::function<bool()>& done, nanoseconds deadline) override;

private:
  class entered {
  public:
    entered(world& w, process& p) : world_(w), before_(std::exchange(w.current_, &p)) {}
    ~entered() { world_.current_ = before_; }

  private:
    world& world_;
    process* before_;
  };

  timeline& time_of(process& p) noexcept { return p.after_death_ ? *p.after_death_ : living_; }
  timeline& here() noexcept { return time_of(*current_); }
  template <class F>
  void each_system(timeline& t, F f);
  nanoseconds next_event(timeline& t);
  void step(timeline& t, nanoseconds limit);
  void pass_to(timeline& t, nanoseconds time);
  void work_off(timeline& t);

  std::vector<std::unique_ptr<process>> processes_;
  std::vector<std::function<void(process&)>> on_death_;
  process* current_ = nullptr;
  timeline living_;
  std::map<std::uint64_t, std::pair<timeline*, nanoseconds>> due_; // of events, by their number
  const bool talks_ = std::getenv("MILLRACE_SIM_TRACE") != nullptr;
  const bool says_events_ = std::getenv("MILLRACE_SIM_EVENTS") != nullptr;
  std::uint64_t last_event_ = 0;
  std::uint64_t happened_ = 0;
  std::uint64_t timers_ = 0;
  std::uint64_t trace_ = 0;
};

/// A loop without a thread: its callbacks are events of the process that made it.
class simulated_loop final : public net::io_loop {
public:
  explicit simulated_loop(world& w) : world_(w), process_(w.current()) {}
  ~simulated_loop() override { stop(); }

  /// As `run_after`.
  std::uint64_t after(nanoseconds delay, std::function<void()> f);
  std::function<void()> on_stop;
  process& of() const noexcept { return process_; }

  void post(std::function<void()> f) override { after({}, std::move(f)); }
  std::uint64_t run_after(std::uint32_t delay_ms, std::function<void()> f) override {
    return after(std::chrono::milliseconds{delay_ms}, std::move(f));
  }
  void cancel_timer(std::uint64_t timer) override;

  status watch(int, std::uint32_t, std::function<void(std::uint32_t)>) override {
    return {errc::unsupported, "a simulated loop watches no descriptors"};
  }
  status rewatch(int, std::uint32_t) override { return {errc::unsupported, "as `watch`"}; }
  void unwatch(int) override {}
  void poll(int, net::shared_signal&) override {}

  bool on_loop() const noexcept override { return on_loop_; }
  void expect(std::int64_t) noexcept override {}
  void stop() override;
  void help(const std::function<bool()>& done, time_point deadline) override;
  void nudge() noexcept override {}

private:
  world& world_;
  process& process_;
  std::set<std::uint64_t> mine_; // events that have not happened
  bool on_loop_ = false;
  bool stopped_ = false;
};

/// A flow of a scenario: a coroutine that awaits futures, other flows and `delay`. It starts at
/// once. An exception is kept until `check`, or for the flow that awaits this one.
class task {
  struct end {
    bool done = false;
    std::exception_ptr broken;
    std::coroutine_handle<> waiting;
  };

public:
  struct promise_type {
    std::shared_ptr<end> ends = std::make_shared<end>();

    // Goes on with the flow that waits for this one.
    struct last {
      bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(
        std::coroutine_handle<promise_type> finished) const noexcept {
        auto next = finished.promise().ends->waiting;
        finished.destroy();
        return next ? next : std::noop_coroutine();
      }
      void await_resume() const noexcept {}
    };

    task get_return_object() { return task{ends}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    last final_suspend() noexcept { return {}; }
    void return_void() { ends->done = true; }
    void unhandled_exception() {
      ends->done = true;
      ends->broken = std::current_exception();
    }
  };

  bool done() const noexcept { return end_->done; }
  /// Throws what the flow threw.
  void check() const {
    if (end_->broken)
      std::rethrow_exception(end_->broken);
  }

  auto operator co_await() const {
    struct awaiter {
      std::shared_ptr<end> ends;
      bool await_ready() const noexcept { return ends->done; }
      void await_suspend(std::coroutine_handle<> handle) const { ends->waiting = handle; }
      void await_resume() const {
        if (ends->broken)
          std::rethrow_exception(ends->broken);
      }
    };
    return awaiter{end_};
  }

private:
  explicit task(std::shared_ptr<end> ends) : end_(std::move(ends)) {}
  std::shared_ptr<end> end_;
};

/// `co_await delay{world, time}` goes on in the same process later, or when that is buried.
struct delay {
  world& in;
  nanoseconds time;

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) const {
    // Dropped, it goes on, too: the flow must end.
    struct going_on {
      std::coroutine_handle<> flow;
      ~going_on() { go(); }
      void go() {
        if (auto it = std::exchange(flow, nullptr))
          it.resume();
      }
    };
    auto one = std::make_shared<going_on>();
    one->flow = handle;
    in.after(in.current(), time, [one] { one->go(); });
  }
  void await_resume() const noexcept {}
};

} // namespace millrace::sim
