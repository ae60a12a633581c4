// Counts the threads that run aside.
#include <millrace/core/background_thread.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/process_mark.hpp>
#include <millrace/runtime/node/side_thread.hpp>

#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace millrace::runtime {

namespace {

// Runs it, and keeps what it throws from ending a thread, or the process.
void attempt(std::function<void()> work) {
  try {
    work();
  } catch (const std::exception& e) {
    log().error("work beside others failed: {}", e.what());
  }
}

class side_threads {
public:
  // The wait of all calls together is bounded.
  void await_end() {
    std::unique_lock guard{mutex_};
    if (!until_) {
      until_ = steady_clock::now() + std::chrono::seconds{10};
      exits_ = std::this_thread::get_id();
    }
    wait_until(changed_, guard, *until_, [this] { return running_ == 0; });
  }

  bool exits() {
    std::lock_guard guard{mutex_};
    return until_.has_value();
  }

  void add(std::function<void()> work) {
    if (is_exiting())
      return attempt(std::move(work));
    count_up();
    try {
      background_thread([this, work = std::move(work)]() mutable {
        attempt(std::exchange(work, nullptr));
        count_down();
      }).detach();
    } catch (...) {
      count_down();
      throw;
    }
  }

private:
  // True on the thread that runs handlers at exit, when the wait is over: the process would not
  // wait for another thread.
  bool is_exiting() {
    std::lock_guard guard{mutex_};
    return until_ && exits_ == std::this_thread::get_id();
  }

  void count_up() {
    std::lock_guard guard{mutex_};
    if (!until_)
      await_at_exit();
    ++running_;
  }

  void count_down() {
    std::lock_guard guard{mutex_};
    --running_;
    changed_.notify_all();
  }

  // Called with `mutex_` held.
  //
  // *Problem*: at exit, what was registered last runs first. Libraries make objects at first use,
  // and those that were made after the wait was registered are destroyed before it, while the
  // threads use them. So it is registered for each of the first calls, and then ever more rarely.
  void await_at_exit() {
    constexpr std::uint64_t each_time = 64;
    if (++calls_ > each_time && !std::has_single_bit(calls_))
      return;
    if (std::atexit([] { one_per_process<side_threads>().await_end(); }) != 0)
      log().warn("the process will not wait for nodes and clients that end when it exits");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t calls_ = 0;
  int running_ = 0;
  std::optional<time_point> until_; // set when the process exits
  std::thread::id exits_;
};

} // namespace

void run_aside(std::function<void()> work) {
  if (simulated())
    return simulated()->run_later([work = std::move(work)] { attempt(work); });
  one_per_process<side_threads>().add(std::move(work));
}

status refused_at_exit() {
  if (!one_per_process<side_threads>().exits())
    return {};
  return {errc::unavailable, "the process exits; nothing can be started or connected any more"};
}

} // namespace millrace::runtime
