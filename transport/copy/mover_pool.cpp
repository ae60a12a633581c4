// The movers: threads on which the jobs of a queue take turns. Drivers submit jobs here.
#include <millrace/core/background_thread.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/simulated_machine.hpp>
#include <millrace/transport/copy/mover_pool.hpp>
#include <millrace/transport/memory/memory_distance.hpp>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace millrace::transport {

namespace {

// A long job must not delay short ones, and several long jobs should end one after the other, so
// that their callers can prepare the next. So a job that has begun runs this many chunks in a row,
// while new jobs get their first chunk every other time.
constexpr std::uint32_t turn_chunks = 8;

struct job {
  std::uint32_t chunks;
  std::function<void(std::uint32_t)> run;
  std::function<void()> done;
  bool is_counted = false;             // among the unfinished transfers
  std::uint32_t next = 0;              // guarded by the pool's mutex
  std::atomic<std::uint32_t> left = 0; // chunks not finished
};

using job_ptr = std::shared_ptr<job>;

// The jobs of one class.
class turns {
public:
  bool empty() const { return fresh_.empty() && begun_.empty(); }

  void add(job_ptr j) { fresh_.push_back(std::move(j)); }

  // Takes the next chunk of the job whose turn it is. There must be one.
  std::pair<job_ptr, std::uint32_t> take() {
    auto is_fresh = begun_.empty() || (!fresh_.empty() && fresh_next_);
    fresh_next_ = !is_fresh;
    auto& from = is_fresh ? fresh_ : begun_;
    auto j = std::move(from.front());
    from.pop_front();
    auto chunk = j->next++;
    // A job is first while it has the turn, else last.
    if (j->next < j->chunks && (is_fresh || j->next % turn_chunks == 0))
      begun_.push_back(j);
    else if (j->next < j->chunks)
      begun_.push_front(j);
    return {std::move(j), chunk};
  }

private:
  std::deque<job_ptr> fresh_; // of which nothing has run
  std::deque<job_ptr> begun_; // the others; the first has the turn
  bool fresh_next_ = true;
};

enum class mover_kind { ordinary, urgent };

} // namespace

// The processors on which threads are kept: those of all that have asked. Threads: any.
class mover_pool::places : public std::enable_shared_from_this<places> {
public:
  std::shared_ptr<void> add(processor_list more) {
    std::lock_guard guard{mutex_};
    auto at = asked_.insert(asked_.end(), std::move(more));
    ++version_;
    return {&*at, [self = shared_from_this(), at](void*) { self->remove(at); }};
  }

  processor_list all() const {
    std::set<std::uint32_t> out;
    std::lock_guard guard{mutex_};
    for (auto& one : asked_)
      out.insert(one.begin(), one.end());
    return {out.begin(), out.end()};
  }

  // Takes the calling thread there. A thread belongs to one pool.
  void go() const {
    thread_local std::uint64_t seen = 0;
    auto now = version_.load();
    if (std::exchange(seen, now) != now)
      stay_on(all());
  }

private:
  void remove(std::list<processor_list>::iterator at) {
    std::lock_guard guard{mutex_};
    asked_.erase(at);
    ++version_;
  }

  mutable std::mutex mutex_;
  std::list<processor_list> asked_;
  std::atomic<std::uint64_t> version_ = 0;
};

struct mover_pool::state {
  state(const yielding& how, const shared& with)
    : splits(how.nice > 0 && !simulated()), nice(how.nice), patience(how.patience),
      hurries(with.hurries), kept(with.kept) {}

  const bool splits;        // transfers are left to movers that yield until they are urgent
  const std::uint32_t nice; // of these movers
  const std::chrono::milliseconds patience;
  const count hurries;
  const std::shared_ptr<places> kept;

  std::mutex mutex;
  std::condition_variable work;    // for the ordinary movers
  std::condition_variable urgency; // for the urgent ones
  turns transfers;
  turns urgent; // used only if the pool splits
  turns background;
  bool urgent_next = true;      // the urgent movers' next chunk, where both have some
  std::uint32_t unfinished = 0; // transfers, counted if the pool splits
  time_point unfinished_since;
  time_point late_until; // transfers that begin before this are late at once
  bool stopping = false;
  std::shared_ptr<state> devices; // of the pool for devices; null until it is made
  std::vector<std::thread> threads, urgent_threads;

  // Waits for a chunk and runs it. Returns false if there is none, and will be none.
  bool wait_and_run(mover_kind kind) {
    std::unique_lock guard{mutex};
    auto* from = choose(kind);
    for (; !from && !stopping; from = choose(kind))
      if (kind == mover_kind::ordinary)
        work.wait(guard);
      else if (transfers.empty())
        urgency.wait(guard);
      else // nothing but time makes them late
        urgency.wait_until(guard, unfinished_since + patience);
    // Who waited for a job goes on at once. On busy cores it would wait for this thread else.
    if (from && run_one(*from, kind, std::move(guard)))
      std::this_thread::yield();
    return from != nullptr;
  }

  // Runs the next chunk on a simulated machine, if there is one.
  bool run_next() {
    std::unique_lock guard{mutex};
    auto* from = choose(mover_kind::ordinary);
    if (from)
      run_one(*from, mover_kind::ordinary, std::move(guard));
    return from != nullptr;
  }

  // Returns true if the job has ended.
  bool run_one(turns& from, mover_kind kind, std::unique_lock<std::mutex> guard) {
    auto [current, chunk] = from.take();
    if (kind == mover_kind::urgent)
      wake_others(from);
    guard.unlock();
    kept->go();
    if (chunk < current->chunks)
      current->run(chunk);
    if (current->left.fetch_sub(1) > 1)
      return false;
    if (current->is_counted)
      finished_one();
    current->done();
    return true;
  }

  // Those from here to `count_one` are called with `mutex` held.

  // Returns the jobs of which such a mover takes a chunk now; null: none.
  turns* choose(mover_kind kind) {
    auto hasty = splits && is_hasty();
    if (kind == mover_kind::urgent) {
      if (hasty && !transfers.empty() && (urgent.empty() || !urgent_next))
        return &transfers;
      if (!urgent.empty())
        return &urgent;
      if (!stopping)
        return nullptr;
    } else if (!hasty && !transfers.empty()) {
      return &transfers;
    }
    return transfers.empty() && urgent.empty() && !background.empty() ? &background : nullptr;
  }

  bool is_hasty() const { return stopping || *hurries > 0 || is_late(); }

  bool is_late() const {
    return unfinished > 0 && steady_clock::now() >= unfinished_since + patience;
  }

  // An urgent mover that has taken a chunk wakes the next one if there are more, and ordinary
  // movers if only background jobs are left.
  void wake_others(const turns& taken_from) {
    urgent_next = &taken_from != &urgent;
    if (choose(mover_kind::urgent))
      urgency.notify_one();
    else if (transfers.empty() && !background.empty())
      work.notify_all();
  }

  // Returns whether ordinary movers have work now.
  bool add(job_ptr j, job_class kind) {
    add_to_its_class(std::move(j), kind);
    return choose(mover_kind::ordinary) != nullptr;
  }

  void add_to_its_class(job_ptr j, job_class kind) {
    if (kind == job_class::background)
      return background.add(std::move(j));
    if (kind == job_class::urgent && splits) {
      urgent.add(std::move(j));
      return urgency.notify_one();
    }
    if (splits)
      count_one(*j);
    // An urgent mover notices when it is late, or takes it now and wakes the next one.
    if (splits && transfers.empty())
      urgency.notify_one();
    transfers.add(std::move(j));
  }

  void count_one(job& j) {
    j.is_counted = true;
    auto now = steady_clock::now();
    if (unfinished++ == 0)
      unfinished_since = now < late_until ? now - patience : now;
  }

  void finished_one() {
    std::lock_guard guard{mutex};
    auto late = is_late();
    if (--unfinished == 0 && late)
      late_until = steady_clock::now() + patience;
  }

  void hurry() {
    ++*hurries;
    here_and_for_devices([](state& s) {
      if (!s.transfers.empty())
        s.urgency.notify_all();
    });
  }

  // The program has waited, and now computes: what is left waits patiently again.
  void relax() {
    if (--*hurries > 0)
      return;
    here_and_for_devices([now = steady_clock::now()](state& s) {
      s.unfinished_since = now;
      s.late_until = {};
      if (s.choose(mover_kind::ordinary))
        s.work.notify_all();
    });
  }

  template <class F>
  void here_and_for_devices(F f) {
    std::shared_ptr<state> other;
    {
      std::lock_guard guard{mutex};
      f(*this);
      other = devices;
    }
    if (other)
      other->here_and_for_devices(f);
  }

  void serve(mover_kind kind) {
    pthread_setname_np(pthread_self(), kind == mover_kind::urgent ? "mr.mover.urgent" : "mr.mover");
    if (kind == mover_kind::ordinary && !lower_priority(nice))
      log().warn("a mover keeps its priority why=\"{}\"", std::strerror(errno));
    while (wait_and_run(kind)) {
    }
  }

  // The last owner may release the pool inside a `done`, and a mover cannot join itself.
  static void join(std::vector<std::thread>& all) {
    for (auto& thread : all)
      if (thread.get_id() == std::this_thread::get_id())
        thread.detach();
      else if (thread.joinable())
        thread.join();
  }
};

// A chunk's event on a simulated machine. It runs the chunk when it happens, and also when it is
// dropped with its process: the job owns what must end.
struct mover_pool::event {
  explicit event(std::shared_ptr<state> s) : of(std::move(s)) {}
  ~event() { of->run_next(); }
  event(const event&) = delete;
  event& operator=(const event&) = delete;

  const std::shared_ptr<state> of;
};

std::uint32_t default_movers() noexcept {
  return std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
}

mover_pool::mover_pool(std::uint32_t threads, std::uint32_t device_threads, const yielding& how)
  : mover_pool(threads, device_threads, how, make_shared()) {}

mover_pool::shared mover_pool::make_shared() {
  return {std::make_shared<std::atomic<std::uint32_t>>(0), std::make_shared<places>()};
}

mover_pool::mover_pool(
  std::uint32_t threads, std::uint32_t device_threads, const yielding& how, const shared& with)
  : state_(std::make_shared<state>(how, with)), device_threads_(device_threads), how_(how) {
  wanted_ = threads == 0 ? default_movers() : threads;
  if (simulated())
    return; // its chunks are events
  auto start = [this](std::vector<std::thread>& all, mover_kind kind) {
    for (std::uint32_t i = 0; i < wanted_; ++i)
      all.push_back(background_thread([s = state_, kind] { s->serve(kind); }));
  };
  try {
    if (state_->splits)
      start(state_->urgent_threads, mover_kind::urgent);
    start(state_->threads, mover_kind::ordinary);
  } catch (const std::system_error&) {
    // The threads that exist do the work; `check` reports the missing ones.
  }
}

status mover_pool::check() const {
  if (threads() == wanted_)
    return {};
  return {
    errc::no_space,
    "the system gives only {} of {} threads that copy (ulimit -u, or the control group's pids.max)",
    state_->threads.size() + state_->urgent_threads.size(), state_->splits ? 2 * wanted_ : wanted_};
}

mover_pool::~mover_pool() { stop(); }

void mover_pool::stop() {
  {
    std::lock_guard guard{state_->mutex};
    state_->stopping = true;
  }
  state_->work.notify_all();
  state_->urgency.notify_all();
  state::join(state_->threads);
  state::join(state_->urgent_threads);
  // The events for these may come too late.
  while (simulated() && state_->run_next()) {
  }
  if (devices_)
    devices_->stop();
}

std::shared_ptr<void> mover_pool::hurry() {
  if (!state_->splits)
    return nullptr;
  state_->hurry();
  return {state_.get(), [s = state_](void*) { s->relax(); }};
}

std::shared_ptr<void> mover_pool::keep_on(std::vector<std::uint32_t> processors) {
  return processors.empty() || simulated() ? nullptr : state_->kept->add(std::move(processors));
}

std::vector<std::uint32_t> mover_pool::kept_on() const { return state_->kept->all(); }

mover_pool& mover_pool::devices() {
  std::call_once(devices_made_, [this] {
    shared with{state_->hurries, state_->kept};
    devices_.reset(new mover_pool{std::max(device_threads_, 1u), 1, how_, with});
    if (auto fewer = devices_->check(); !fewer.ok())
      log().warn("fewer threads wait for devices why=\"{}\"", fewer.detail());
    std::lock_guard guard{state_->mutex};
    state_->devices = devices_->state_;
  });
  return devices_->threads() > 0 ? *devices_ : *this;
}

std::uint32_t mover_pool::threads() const noexcept {
  return simulated() ? wanted_ : static_cast<std::uint32_t>(state_->threads.size());
}

void mover_pool::submit(
  std::uint32_t chunks, std::function<void(std::uint32_t)> run, std::function<void()> done,
  job_class kind) {
  auto j = std::make_shared<job>();
  j->chunks = chunks;
  j->run = std::move(run);
  j->done = std::move(done);
  j->left = std::max(chunks, 1u);
  auto for_ordinary = false;
  {
    std::lock_guard guard{state_->mutex};
    if (state_->stopping)
      return;
    for_ordinary = state_->add(std::move(j), kind);
  }
  if (auto* machine = simulated()) {
    for (auto left = std::max(chunks, 1u); left > 0; --left)
      machine->run_later([one = std::make_shared<event>(state_)]() mutable { one.reset(); });
    return;
  }
  // Threads that find nothing to do are switched to all the same.
  if (for_ordinary && chunks > 1)
    state_->work.notify_all();
  else if (for_ordinary)
    state_->work.notify_one();
}

} // namespace millrace::transport
