// Connects when asked, and again after a loss, with growing delays.
#include <millrace/net/channel/link.hpp>

#include <algorithm>
#include <mutex>
#include <vector>

namespace millrace::net {

namespace {

using channel_done = completion<std::shared_ptr<channel>>;
using phase = link_state::phase;

/// One attempt: the addresses one after the other, until one answers.
struct trial {
  time_point deadline;
  std::size_t next = 0;
  status why; // what kept us from those before

  void failed(const status& cause) {
    // Report the most specific error: "the secrets differ" rather than "no such socket".
    auto code = why.ok() || why.code() == errc::unavailable ? cause.code() : why.code();
    why = status{code, why.ok() ? cause.detail() : why.detail() + "; " + cause.detail()};
  }
};

/// The state of a link; callbacks on the loop hold a weak pointer to it.
class link_core : public std::enable_shared_from_this<link_core> {
public:
  link_core(
    std::shared_ptr<io_loop> loop, const link_options& options,
    std::function<std::shared_ptr<channel_handler>()> make_handler)
    : loop_(std::move(loop)), options_(options), make_handler_(std::move(make_handler)) {
    if (options_.addresses.empty())
      options_.addresses = {options_.address};
    else if (options_.address.empty())
      options_.address = options_.addresses.front();
  }

  void acquire(channel_done done);
  std::shared_ptr<channel> open_channel() const;
  void close(status why, std::uint32_t drain_ms);
  void lost(const status& why);

  link_state state() const {
    std::lock_guard guard{mutex_};
    return state_;
  }
  const std::string& address() const noexcept { return options_.address; }
  bool is_closed() const { return state().now == phase::closed; }

private:
  void attempt(std::unique_lock<std::mutex>& lock);
  void attempted(result<std::shared_ptr<channel>> outcome);
  void try_address(const std::shared_ptr<trial>& t);
  void schedule_attempt();
  status why_not() const;
  std::shared_ptr<channel> open_now() const;

  const std::shared_ptr<io_loop> loop_;
  link_options options_;
  const std::function<std::shared_ptr<channel_handler>()> make_handler_;

  mutable std::mutex mutex_;
  link_state state_;
  std::shared_ptr<channel> channel_;
  std::vector<channel_done> waiters_;
  time_point opened_at_{};
  time_point next_attempt_{};
  std::uint32_t backoff_ms_ = 0;
  std::uint64_t timer_ = 0;
};

/// Forwards all events, and tells the link of the end.
class watching_handler final : public channel_handler {
public:
  watching_handler(std::shared_ptr<channel_handler> inner, std::weak_ptr<link_core> owner)
    : inner_(std::move(inner)), owner_(std::move(owner)) {}

  void on_open(const std::shared_ptr<channel>& c) override { inner_->on_open(c); }
  void on_frame(channel& c, frame f) override { inner_->on_frame(c, std::move(f)); }
  void on_close(channel& c, const status& why) override {
    if (auto owner = owner_.lock())
      owner->lost(why);
    inner_->on_close(c, why);
  }

private:
  std::shared_ptr<channel_handler> inner_;
  std::weak_ptr<link_core> owner_;
};

std::shared_ptr<channel> link_core::open_channel() const {
  std::lock_guard guard{mutex_};
  return open_now();
}

// Called with `mutex_` held.
std::shared_ptr<channel> link_core::open_now() const {
  return channel_ && channel_->is_open() ? channel_ : nullptr;
}

void link_core::acquire(channel_done done) {
  std::unique_lock lock{mutex_};
  if (auto open = open_now()) {
    lock.unlock();
    return done(std::move(open));
  }
  auto may_try = state_.now == phase::idle ||
    (state_.now == phase::waiting && steady_clock::now() >= next_attempt_);
  // In phase `open` with a closed channel: its end has been posted, and brings the reason.
  if (state_.now == phase::connecting || may_try) {
    waiters_.push_back(std::move(done));
    return may_try ? attempt(lock) : void();
  }
  auto why = why_not();
  lock.unlock();
  done(fail(why));
}

status link_core::why_not() const {
  if (state_.now == phase::closed)
    return status{errc::unavailable, "the link to {} is closed", options_.address};
  auto cause = state_.last_cause.ok() ? std::string{"the connection is closing"}
                                      : state_.last_cause.to_string();
  return status{
    errc::unavailable, "{} cannot be reached now; last cause: {}", options_.address, cause};
}

void link_core::attempt(std::unique_lock<std::mutex>& lock) {
  state_.now = phase::connecting;
  lock.unlock();
  // The handler is made on the loop, as `make` promises; a dropped post still answers the waiters.
  struct promise_to_answer {
    std::weak_ptr<link_core> owner;
    bool answered = false;
    ~promise_to_answer() {
      if (auto core = owner.lock(); core && !answered)
        core->attempted(fail(errc::unavailable, "the I/O loop has stopped"));
    }
  };
  auto promise = std::make_shared<promise_to_answer>();
  promise->owner = weak_from_this();
  loop_->post([promise] {
    auto core = promise->owner.lock();
    if (!core)
      return;
    promise->answered = true;
    auto t = std::make_shared<trial>();
    t->deadline =
      steady_clock::now() + std::chrono::milliseconds{core->options_.connect_timeout_ms};
    core->try_address(t);
  });
}

// Each address gets a share of the time, so that one without an answer leaves time for the next.
void link_core::try_address(const std::shared_ptr<trial>& t) {
  auto& all = options_.addresses;
  auto left = std::chrono::ceil<std::chrono::milliseconds>(t->deadline - steady_clock::now());
  auto share = std::max<std::int64_t>(left.count(), 1) / static_cast<int>(all.size() - t->next);
  auto channel_options = options_.channel;
  channel_options.handshake_timeout_ms =
    static_cast<std::uint32_t>(std::max<std::int64_t>(share, 1));
  auto& address = all[t->next++];
  auto handler = std::make_shared<watching_handler>(make_handler_(), weak_from_this());
  options_.via->connect(
    loop_, address, channel_options, std::move(handler),
    [weak = weak_from_this(), t](result<std::shared_ptr<channel>> outcome) {
      auto owner = weak.lock();
      if (!owner) {
        if (outcome)
          (*outcome)->close(status{});
        return;
      }
      if (outcome)
        return owner->attempted(std::move(outcome));
      t->failed(outcome.error());
      if (t->next == owner->options_.addresses.size() || owner->is_closed())
        return owner->attempted(fail(t->why));
      owner->try_address(t);
    });
}

void link_core::attempted(result<std::shared_ptr<channel>> outcome) {
  std::vector<channel_done> waiters;
  {
    std::lock_guard guard{mutex_};
    waiters.swap(waiters_);
    if (state_.now == phase::closed) {
      if (outcome)
        (*outcome)->close(status{});
      outcome = fail(why_not());
    } else if (outcome) {
      state_.now = phase::open;
      state_.failed = 0;
      ++state_.opened;
      channel_ = *outcome;
      opened_at_ = steady_clock::now();
      // It may have ended inside the handler's `on_open` already.
      if (!channel_->is_open())
        schedule_attempt();
    } else {
      ++state_.failed;
      state_.last_cause = outcome.error();
      schedule_attempt();
    }
  }
  for (auto& done : waiters)
    done(outcome);
}

// Reconnect soon after a connection that lasted, later after one that ended at once.
void link_core::lost(const status& why) {
  std::lock_guard guard{mutex_};
  state_.last_cause = why.ok() ? status{errc::unavailable, "closed on this side"} : why;
  if (state_.now != phase::open)
    return;
  channel_ = nullptr;
  if (steady_clock::now() - opened_at_ > std::chrono::milliseconds{options_.backoff_max_ms})
    backoff_ms_ = 0;
  schedule_attempt();
}

void link_core::schedule_attempt() {
  channel_ = nullptr;
  state_.now = phase::waiting;
  backoff_ms_ = std::clamp(2 * backoff_ms_, options_.backoff_min_ms, options_.backoff_max_ms);
  next_attempt_ = steady_clock::now() + std::chrono::milliseconds{backoff_ms_};
  timer_ = loop_->run_after(backoff_ms_, [weak = weak_from_this()] {
    auto core = weak.lock();
    if (!core)
      return;
    std::unique_lock lock{core->mutex_};
    if (core->state_.now == phase::waiting)
      core->attempt(lock);
  });
}

void link_core::close(status why, std::uint32_t drain_ms) {
  std::shared_ptr<channel> open;
  std::vector<channel_done> waiters;
  {
    std::lock_guard guard{mutex_};
    state_.now = phase::closed;
    open.swap(channel_);
    waiters.swap(waiters_);
    loop_->cancel_timer(timer_);
  }
  for (auto& done : waiters)
    done(fail(errc::cancelled, "the link to {} was closed", options_.address));
  if (open)
    open->close(std::move(why), drain_ms);
}

/// The link as its users hold it: its destruction closes the link.
class link_handle final : public link {
public:
  explicit link_handle(std::shared_ptr<link_core> core) : core_(std::move(core)) {}
  ~link_handle() override { core_->close(status{}, 0); }

  void acquire(channel_done done) override { core_->acquire(std::move(done)); }
  std::shared_ptr<channel> open_channel() const override { return core_->open_channel(); }
  link_state state() const override { return core_->state(); }
  const std::string& address() const noexcept override { return core_->address(); }
  void close(status why, std::uint32_t drain_ms) override {
    core_->close(std::move(why), drain_ms);
  }

private:
  std::shared_ptr<link_core> core_;
};

} // namespace

std::shared_ptr<link> link::make(
  const std::shared_ptr<io_loop>& loop, const link_options& options,
  std::function<std::shared_ptr<channel_handler>()> make_handler) {
  return std::make_shared<link_handle>(
    std::make_shared<link_core>(loop, options, std::move(make_handler)));
}

} // namespace millrace::net
