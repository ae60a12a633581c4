// The movers: threads on which the jobs of a queue take turns. Drivers submit jobs here.
#include <millrace/core/log.hpp>
#include <millrace/core/simulated_machine.hpp>
#include <millrace/transport/copy/mover_pool.hpp>

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
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
  std::uint32_t next = 0;              // guarded by the pool's mutex
  std::atomic<std::uint32_t> left = 0; // chunks not finished
};

} // namespace

struct mover_pool::state {
  std::mutex mutex;
  std::condition_variable work;
  std::deque<std::shared_ptr<job>> fresh; // transfers of which nothing has run
  std::deque<std::shared_ptr<job>> begun; // the other transfers; the first has the turn
  bool fresh_next = true;
  std::deque<std::shared_ptr<job>> background; // run while no transfer waits
  bool stopping = false;
  std::vector<std::thread> threads;

  // Waits for a chunk and runs it. Returns false if there is none, and will be none.
  bool wait_and_run() {
    std::unique_lock guard{mutex};
    work.wait(guard, [this] {
      return stopping || !fresh.empty() || !begun.empty() || !background.empty();
    });
    return run_next(std::move(guard));
  }

  // Runs the next chunk, if there is one.
  bool run_next(std::unique_lock<std::mutex> guard) {
    std::shared_ptr<job> current;
    std::uint32_t chunk = 0;
    if (!take(current, chunk))
      return false;
    guard.unlock();
    if (chunk < current->chunks)
      current->run(chunk);
    if (current->left.fetch_sub(1) == 1)
      current->done();
    return true;
  }

  // Takes the next chunk of the job whose turn it is.
  bool take(std::shared_ptr<job>& out, std::uint32_t& chunk) {
    auto& queue = next_queue();
    if (queue.empty())
      return false;
    out = std::move(queue.front());
    queue.pop_front();
    chunk = out->next++;
    if (out->next < out->chunks)
      line_up(out, queue);
    return true;
  }

  // Puts the job first while it has the turn, else last.
  void line_up(const std::shared_ptr<job>& j, std::deque<std::shared_ptr<job>>& from) {
    auto was_fresh = &from == &fresh;
    auto& queue = was_fresh ? begun : from;
    if (was_fresh || j->next % turn_chunks == 0)
      queue.push_back(j);
    else
      queue.push_front(j);
  }

  std::deque<std::shared_ptr<job>>& next_queue() {
    if (fresh.empty() && begun.empty())
      return background;
    auto new_one = begun.empty() || (!fresh.empty() && fresh_next);
    fresh_next = !new_one;
    return new_one ? fresh : begun;
  }

  void serve(std::uint32_t nice) {
    pthread_setname_np(pthread_self(), "mr.mover");
    // On Linux this is the calling thread's own. The bound of nice values cuts the sum.
    auto now = ::getpriority(PRIO_PROCESS, 0);
    if (nice > 0 && ::setpriority(PRIO_PROCESS, 0, now + static_cast<int>(nice)) != 0)
      log().warn("a mover keeps its priority why=\"{}\"", std::strerror(errno));
    while (wait_and_run()) {
    }
  }
};

// A chunk's event on a simulated machine. It runs the chunk when it happens, and also when it is
// dropped with its process: the job owns what must end.
struct mover_pool::event {
  explicit event(std::shared_ptr<state> s) : of(std::move(s)) {}
  ~event() { of->run_next(std::unique_lock{of->mutex}); }
  event(const event&) = delete;
  event& operator=(const event&) = delete;

  const std::shared_ptr<state> of;
};

std::uint32_t default_movers() noexcept {
  return std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
}

mover_pool::mover_pool(std::uint32_t threads, std::uint32_t device_threads, std::uint32_t nice)
  : state_(std::make_shared<state>()), device_threads_(device_threads), nice_(nice) {
  wanted_ = threads == 0 ? default_movers() : threads;
  if (simulated())
    return; // its chunks are events
  try {
    for (std::uint32_t i = 0; i < wanted_; ++i)
      state_->threads.emplace_back([s = state_, nice] { s->serve(nice); });
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
    threads(), wanted_};
}

mover_pool::~mover_pool() {
  {
    std::lock_guard guard{state_->mutex};
    state_->stopping = true;
  }
  state_->work.notify_all();
  // The last owner may release the pool inside a `done`, and a mover cannot join itself.
  for (auto& thread : state_->threads)
    if (thread.get_id() == std::this_thread::get_id())
      thread.detach();
    else
      thread.join();
  // The events for these may come too late.
  while (simulated() && state_->run_next(std::unique_lock{state_->mutex})) {
  }
}

mover_pool& mover_pool::devices() {
  std::call_once(devices_made_, [this] {
    devices_ = std::make_unique<mover_pool>(std::max(device_threads_, 1u), 1, nice_);
    if (auto fewer = devices_->check(); !fewer.ok())
      log().warn("fewer threads wait for devices why=\"{}\"", fewer.detail());
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
  {
    std::lock_guard guard{state_->mutex};
    if (state_->stopping)
      return;
    (kind == job_class::transfer ? state_->fresh : state_->background).push_back(std::move(j));
  }
  if (auto* machine = simulated()) {
    for (auto left = std::max(chunks, 1u); left > 0; --left)
      machine->run_later([one = std::make_shared<event>(state_)]() mutable { one.reset(); });
    return;
  }
  if (chunks > 1)
    state_->work.notify_all();
  else
    state_->work.notify_one();
}

} // namespace millrace::transport
