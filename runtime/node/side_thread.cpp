// Counts the threads that run aside.
#include <millrace/core/background_thread.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/process_mark.hpp>
#include <millrace/runtime/node/side_thread.hpp>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace millrace::runtime {

namespace {

class side_threads {
public:
  void await_end() {
    std::unique_lock guard{mutex_};
    changed_.wait_for(guard, std::chrono::seconds{10}, [this] { return running_ == 0; });
  }

  void add(std::function<void()> work) {
    count(1);
    try {
      background_thread([this, work = std::move(work)]() mutable {
        try {
          std::exchange(work, nullptr)();
        } catch (const std::exception& e) {
          log().error("work beside others failed: {}", e.what());
        }
        count(-1);
      }).detach();
    } catch (...) {
      count(-1);
      throw;
    }
  }

private:
  void count(int change) {
    std::lock_guard guard{mutex_};
    running_ += change;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int running_ = 0;
};

} // namespace

void run_aside(std::function<void()> work) {
  static struct at_exit {
    ~at_exit() { one_per_process<side_threads>().await_end(); }
  } ends;
  one_per_process<side_threads>().add(std::move(work));
}

} // namespace millrace::runtime
