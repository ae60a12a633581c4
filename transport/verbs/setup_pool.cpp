// Lets lanes take turns on the threads.
#include <millrace/core/background_thread.hpp>
#include <millrace/core/log.hpp>
#include <millrace/transport/verbs/setup_pool.hpp>

#include <pthread.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

namespace millrace::transport::verbs {

result<std::shared_ptr<setup_pool>> setup_pool::start(std::uint32_t threads_max) {
  std::shared_ptr<setup_pool> pool{new setup_pool{threads_max}};
  std::lock_guard guard{pool->mutex_};
  if (auto bad = pool->add_thread(); !bad.ok())
    return fail(bad);
  return pool;
}

status setup_pool::add_thread() {
  try {
    threads_.push_back(background_thread([this] { run(); }));
  } catch (const std::system_error& e) {
    return {errc::no_space, "starting a thread that connects RDMA: {}", e.what()};
  }
  ++idle_;
  return {};
}

void setup_pool::post(const void* lane, turn when, std::function<void()> f) {
  std::lock_guard guard{mutex_};
  if (stopping_)
    return;
  auto& l = lanes_[lane];
  l.waiting.push_back({when, std::move(f)});
  if (l.running || l.waiting.size() > 1)
    return; // the lane is in line, or will be
  line_up(lane, when);
  // A thread that was woken or made and has not started its work yet counts as idle.
  if (due_[0].size() + due_[1].size() <= idle_ || threads_.size() >= threads_max_)
    return;
  if (auto bad = add_thread(); !bad.ok())
    log().warn("{}; what there is to do waits for those that run", bad.detail());
}

void setup_pool::line_up(const void* lane, turn when) {
  due_[static_cast<std::size_t>(when)].push_back(lane);
  changed_.notify_one();
}

bool setup_pool::may_begin(turn when) const {
  if (due_[static_cast<std::size_t>(when)].empty())
    return false;
  return when == turn::first || again_running_ < std::max(1u, threads_max_ - 1);
}

void setup_pool::run() {
  pthread_setname_np(pthread_self(), "mr.verbs.setup");
  std::unique_lock guard{mutex_};
  while (true) {
    changed_.wait(guard, [this] { return stopping_ || has_due(); });
    --idle_;
    if (stopping_)
      return;
    run_one(guard);
    ++idle_;
  }
}

void setup_pool::run_one(std::unique_lock<std::mutex>& guard) {
  auto when = may_begin(turn::first) ? turn::first : turn::again;
  auto& due = due_[static_cast<std::size_t>(when)];
  auto lane = due.front();
  due.pop_front();
  auto mine = lanes_.find(lane);
  auto t = std::move(mine->second.waiting.front());
  mine->second.waiting.pop_front();
  mine->second.running = true;
  again_running_ += when == turn::again;
  guard.unlock();
  t.run();
  t.run = nullptr; // its captures are destroyed without the lock
  guard.lock();
  again_running_ -= when == turn::again;
  mine->second.running = false;
  if (mine->second.waiting.empty())
    lanes_.erase(mine);
  else
    line_up(lane, mine->second.waiting.front().when);
}

void setup_pool::stop() {
  lanes dropped;
  {
    std::lock_guard guard{mutex_};
    stopping_ = true;
    // Running lanes stay in the table, since their threads come back to them.
    for (auto& [lane, l] : lanes_)
      dropped[lane].waiting.swap(l.waiting);
    due_[0].clear();
    due_[1].clear();
    changed_.notify_all();
  }
  for (auto& t : std::exchange(threads_, {}))
    t.join();
}

} // namespace millrace::transport::verbs
