// The I/O loop: which thread holds the role, how it is handed over, and what the holder does.
#include <millrace/core/assert.hpp>
#include <millrace/core/background_thread.hpp>
#include <millrace/core/process_mark.hpp>
#include <millrace/core/race_plant.hpp>
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/net/loop/poller.hpp>
#include <millrace/net/loop/timer_queue.hpp>

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace millrace::net {

namespace {

using namespace std::chrono_literals;

// The own thread takes the role back only this long after the last caller has left: waking it after
// every operation would cost the caller a context switch each time.
constexpr auto own_absence = 2ms;
constexpr auto own_check = 1ms;
// How long a caller waits for the role while its holder runs callbacks. After that it waits without
// helping.
constexpr auto hand_over_max = 2ms;
constexpr auto hand_over_check = 200us;
// Polls between two yields, unless the peer needs this core. A yield takes longer than a poll, and
// delays events that arrive meanwhile.
constexpr auto yield_interval = 3us;

// A caller that has come back so soon so often is expected to come back again. The own thread would
// take the role from it meanwhile, and a core.
constexpr auto soon = 400us;
constexpr std::uint32_t quick_returns_min = 4;

enum class holder : std::uint8_t { none, own_thread, helper };

/// How long to poll before sleeping. Follows what polling finds.
class poll_bound {
public:
  explicit poll_bound(std::uint32_t max_us) : max_(max_us), current_(max_us) {}

  std::chrono::microseconds current() const noexcept { return std::chrono::microseconds{current_}; }

  /// An event arrived after `waited`, polling or asleep.
  void came_after(steady_clock::duration waited) noexcept {
    if (waited <= std::chrono::microseconds{max_})
      current_ = std::min(max_, std::max(2 * current_, 4u));
    else
      current_ /= 2;
  }

private:
  std::uint32_t max_;
  std::uint32_t current_;
};

/// The state of a loop. The own thread keeps it alive, so that the last user may release the loop
/// in a callback.
class loop_state {
public:
  loop_state(std::unique_ptr<poller> p, io_loop_options options)
    : poller_(std::move(p)), own_bound_(options.poll_us), help_bound_(options.poll_us) {}

  void run();
  void help(const std::function<bool()>& done, time_point deadline);
  void wake() noexcept;
  void post(std::function<void()> f);
  std::uint64_t run_after(std::uint32_t delay_ms, std::function<void()> f);
  void cancel_timer(std::uint64_t timer);
  void attend() noexcept;
  void request_stop();

  bool on_loop() const noexcept { return role_thread_.load() == std::this_thread::get_id(); }
  void expect(std::int64_t change) noexcept { expected_.fetch_add(change); }
  poller& descriptors() noexcept { return *poller_; }
  const activity& doing() const noexcept { return doing_; }

private:
  using lock_type = std::unique_lock<std::mutex>;

  void await_turn(lock_type& lock);
  bool take_over(lock_type& lock, const std::function<bool()>& done, time_point deadline);
  void take_role(holder who);
  void leave_role();
  void helper_left(lock_type& lock);
  void drop_everything();

  template <class Leave>
  void drive(const Leave& leave, time_point deadline, poll_bound& bound) noexcept;
  void run_due();
  void call(std::function<void()>& f);
  template <class Leave>
  int wait(const Leave& leave, time_point deadline, poll_bound& bound);
  template <class Leave>
  int sleep(const Leave& leave, time_point until);

  // Used by the holder of the role only.
  std::unique_ptr<poller> poller_;
  poll_bound own_bound_;
  poll_bound help_bound_;
  time_point next_timer_ = time_point::max();
  activity doing_;

  std::atomic<bool> attention_ = false; // something changed that the holder must look at
  std::atomic<bool> sleeping_ = false;  // the holder is, or is about to be, blocked
  std::atomic<bool> wanted_ = false;    // a helper waits for the own thread to hand over
  std::atomic<bool> stopping_ = false;
  std::atomic<std::int64_t> expected_ = 0;
  std::atomic<std::thread::id> role_thread_{};

  std::mutex mutex_; // guards all below, and changes of `wanted_` and `stopping_`
  std::condition_variable own_turn_;
  std::condition_variable handed_over_;
  holder holder_ = holder::none;
  bool own_due_ = false;     // the own thread must come back before its pause is over
  bool attended_ = false;    // an outcome is needed, and perhaps no helper comes
  bool parked_deep_ = false; // the own thread waits without a time limit
  std::uint64_t helps_ = 0;
  time_point helper_left_at_{};
  std::uint32_t quick_returns_ = 0; // of helpers in a row, while no other caller had to wait
  std::vector<std::function<void()>> posted_;
  timer_queue timers_;
};

// This side sets the flag before it reads `sleeping_`; the holder does the opposite. So one of them
// sees the other.
void loop_state::wake() noexcept {
  attention_.store(true);
  if (sleeping_.exchange(false))
    poller_->interrupt();
}

void loop_state::post(std::function<void()> f) {
  {
    std::lock_guard guard{mutex_};
    if (stopping_)
      return;
    posted_.push_back(std::move(f));
    if (holder_ == holder::none) {
      own_turn_.notify_one();
      return;
    }
  }
  wake();
}

std::uint64_t loop_state::run_after(std::uint32_t delay_ms, std::function<void()> f) {
  std::uint64_t id = 0;
  auto at = steady_clock::now() + std::chrono::milliseconds{delay_ms};
  bool first;
  {
    std::lock_guard guard{mutex_};
    if (stopping_)
      return 0;
    first = at < timers_.next();
    id = timers_.add(at, std::move(f));
  }
  // The holder wakes for the timers before this one, and looks again then.
  if (first)
    wake();
  return id;
}

void loop_state::cancel_timer(std::uint64_t timer) {
  std::function<void()> cancelled;
  std::lock_guard guard{mutex_};
  cancelled = timers_.cancel(timer);
}

void loop_state::attend() noexcept {
  std::lock_guard guard{mutex_};
  if (holder_ == holder::own_thread || std::exchange(attended_, true))
    return;
  if (holder_ == holder::none) {
    own_due_ = true;
    own_turn_.notify_one();
  }
}

void loop_state::take_role(holder who) {
  holder_ = who;
  role_thread_.store(std::this_thread::get_id());
}

void loop_state::leave_role() {
  holder_ = holder::none;
  role_thread_.store({});
}

void loop_state::run() {
  lock_type lock{mutex_};
  while (!stopping_) {
    await_turn(lock);
    if (stopping_)
      break;
    take_role(holder::own_thread);
    attended_ = false;
    lock.unlock();
    drive([this] { return wanted_.load() || stopping_.load(); }, time_point::max(), own_bound_);
    lock.lock();
    leave_role();
    handed_over_.notify_all();
  }
  own_turn_.wait(lock, [this] { return holder_ == holder::none; });
  take_role(holder::own_thread);
  lock.unlock();
  drop_everything();
  lock.lock();
  leave_role();
}

// Blocks the own thread until the role is free and no caller is likely to take it again soon.
void loop_state::await_turn(lock_type& lock) {
  std::uint64_t seen = 0;
  while (!stopping_) {
    if (holder_ == holder::none && !wanted_) {
      if (own_due_ || !posted_.empty() || steady_clock::now() - helper_left_at_ >= own_absence) {
        own_due_ = false;
        return;
      }
      if (own_turn_.wait_for(lock, own_check) == std::cv_status::timeout && expected_ > 0)
        own_due_ = true;
    } else if (holder_ == holder::helper && helps_ == seen) {
      // A caller has stayed for a whole period: it will notify when it leaves.
      parked_deep_ = true;
      own_turn_.wait(lock);
      parked_deep_ = false;
    } else {
      seen = helps_;
      own_turn_.wait_for(lock, own_check);
    }
  }
}

void loop_state::help(const std::function<bool()>& done, time_point deadline) {
  if (on_loop() || done())
    return;
  auto came_at = steady_clock::now();
  lock_type lock{mutex_};
  quick_returns_ = came_at - helper_left_at_ <= soon ? quick_returns_ + 1 : 0;
  if (!take_over(lock, done, deadline)) {
    quick_returns_ = 0; // this caller needs another thread
    return;
  }
  take_role(holder::helper);
  own_due_ = false;
  ++helps_;
  lock.unlock();
  drive([&] { return done() || stopping_.load(); }, deadline, help_bound_);
  lock.lock();
  helper_left(lock);
}

// Gets the role for a helper: takes it if it is free, otherwise asks the own thread to hand it
// over.
bool loop_state::take_over(
  lock_type& lock, const std::function<bool()>& done, time_point deadline) {
  if (stopping_ || holder_ == holder::helper || wanted_)
    return false;
  if (holder_ == holder::none)
    return true;
  wanted_ = true;
  wake();
  auto limit = std::min(deadline, steady_clock::now() + hand_over_max);
  bool finished = false;
  while (holder_ == holder::own_thread && !stopping_ && !finished) {
    auto now = steady_clock::now();
    if (now >= limit)
      break;
    handed_over_.wait_until(lock, std::min<time_point>(limit, now + hand_over_check));
    lock.unlock();
    finished = done();
    lock.lock();
  }
  wanted_ = false;
  if (holder_ == holder::none && !stopping_ && !finished)
    return true;
  own_due_ = true;
  own_turn_.notify_one();
  return false;
}

void loop_state::helper_left(lock_type& lock) {
  leave_role();
  helper_left_at_ = steady_clock::now();
  auto comes_back = quick_returns_ >= quick_returns_min;
  own_due_ = !posted_.empty() || attended_ || (expected_.load() > 0 && !comes_back);
  auto call = own_due_ || parked_deep_ || stopping_;
  lock.unlock();
  if (call)
    own_turn_.notify_one();
}

void loop_state::request_stop() {
  {
    std::lock_guard guard{mutex_};
    stopping_ = true;
  }
  own_turn_.notify_all();
  handed_over_.notify_all();
  wake();
}

// Runs on the own thread when no other thread can hold the role. Dropped functions may call the
// loop.
void loop_state::drop_everything() {
  std::vector<std::function<void()>> posted;
  timer_queue timers;
  {
    std::lock_guard guard{mutex_};
    posted.swap(posted_);
    std::swap(timers, timers_);
  }
  poller_->clear();
}

// noexcept: an exception from a callback is a defect, and must not reach an unrelated caller that
// waits.
template <class Leave>
void loop_state::drive(const Leave& leave, time_point deadline, poll_bound& bound) noexcept {
  while (true) {
    run_due();
    if (leave() || (deadline != time_point::max() && steady_clock::now() >= deadline))
      return;
    poller_->dispatch(wait(leave, deadline, bound), doing_);
  }
}

void loop_state::run_due() {
  MILLRACE_PLANTED_RACE("io_loop");
  attention_.store(false);
  std::vector<std::function<void()>> posted;
  auto now = steady_clock::now();
  lock_type lock{mutex_};
  posted.swap(posted_);
  while (auto due = timers_.take_due(now)) {
    lock.unlock();
    call(due);
    lock.lock();
  }
  next_timer_ = timers_.next();
  lock.unlock();
  for (auto& f : posted)
    call(f);
}

// Destroying what a callback holds may take as long as running it.
void loop_state::call(std::function<void()>& f) {
  activity::scope running{doing_, f.target_type()};
  f();
  f = nullptr;
}

template <class Leave>
int loop_state::wait(const Leave& leave, time_point deadline, poll_bound& bound) {
  auto begin = steady_clock::now();
  auto until = std::min(deadline, next_timer_);
  auto poll_until = std::min<time_point>(until, begin + bound.current());
  auto now = begin;
  auto yield_at = begin + yield_interval;
  do {
    if (auto ready = poller_->wait(0)) {
      bound.came_after(now - begin);
      return ready;
    }
    if (attention_ || leave())
      return 0;
    now = steady_clock::now();
    if (now < yield_at && !poller_->shares_core())
      continue;
    // The peer may be waiting for this core.
    ::sched_yield();
    now = steady_clock::now();
    yield_at = now + yield_interval;
  } while (now < poll_until);
  auto ready = sleep(leave, until);
  bound.came_after(steady_clock::now() - begin);
  return ready;
}

template <class Leave>
int loop_state::sleep(const Leave& leave, time_point until) {
  sleeping_.exchange(true);
  int timeout_ms = 0;
  if (!attention_ && !leave() && poller_->rest()) {
    timeout_ms = -1;
    if (until != time_point::max()) {
      auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now()).count();
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
    }
  }
  auto ready = poller_->wait(timeout_ms);
  sleeping_.store(false);
  return ready;
}

/// The loop as its users hold it.
class loop_handle final : public io_loop {
public:
  explicit loop_handle(std::shared_ptr<loop_state> state)
    : state_(std::move(state)), thread_(background_thread([s = state_] {
        pthread_setname_np(pthread_self(), "mr.loop");
        s->run();
      })) {}

  ~loop_handle() override {
    if (!on_loop()) {
      stop();
      return;
    }
    // The last user released the loop in a callback: the thread ends after that callback.
    state_->request_stop();
    thread_.detach();
  }

  void help(const std::function<bool()>& done, time_point deadline) override {
    auto keep = state_;
    keep->help(done, deadline);
  }
  void nudge() noexcept override {
    if (!state_->on_loop())
      state_->wake();
  }
  void attend() noexcept override { state_->attend(); }
  void post(std::function<void()> f) override { state_->post(std::move(f)); }
  std::uint64_t run_after(std::uint32_t delay_ms, std::function<void()> f) override {
    return state_->run_after(delay_ms, std::move(f));
  }
  void cancel_timer(std::uint64_t timer) override { state_->cancel_timer(timer); }
  status watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> f) override {
    MILLRACE_ASSERT(on_loop());
    return state_->descriptors().watch(fd, events, std::move(f));
  }
  status rewatch(int fd, std::uint32_t events) override {
    MILLRACE_ASSERT(on_loop());
    return state_->descriptors().rewatch(fd, events);
  }
  void unwatch(int fd) override {
    MILLRACE_ASSERT(on_loop());
    state_->descriptors().unwatch(fd);
  }
  void poll(int fd, shared_signal& signal) override {
    MILLRACE_ASSERT(on_loop());
    state_->descriptors().poll(fd, signal);
  }
  bool on_loop() const noexcept override { return state_->on_loop(); }
  const activity* doing() const noexcept override { return &state_->doing(); }
  void expect(std::int64_t change) noexcept override { state_->expect(change); }

  void stop() override {
    MILLRACE_ASSERT(!on_loop());
    state_->request_stop();
    std::lock_guard guard{stop_mutex_};
    if (thread_.joinable())
      thread_.join();
  }

private:
  std::shared_ptr<loop_state> state_;
  std::mutex stop_mutex_;
  std::thread thread_;
};

} // namespace

result<std::shared_ptr<io_loop>> io_loop::start(io_loop_options options) {
  auto made = poller::open();
  if (!made)
    return fail(made.error());
  auto state = std::make_shared<loop_state>(std::move(*made), options);
  try {
    return kept_from_forks(new loop_handle{std::move(state)});
  } catch (const std::system_error& e) {
    return fail(errc::no_space, "the thread that waits for sockets: {}", e.what());
  }
}

} // namespace millrace::net
