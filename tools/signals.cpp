// A thread that waits for signals.
#include <millrace/core/assert.hpp>
#include <millrace/tools/signals.hpp>

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

namespace millrace::tools {

namespace {

sigset_t stop_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

} // namespace

stop_signals& stop_signals::install() {
  // Never destroyed: its thread waits until the process ends.
  static auto* signals = [] {
    signal(SIGPIPE, SIG_IGN);
    auto set = stop_set();
    MILLRACE_ASSERT(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
    auto* made = new stop_signals;
    std::thread{[made] { made->watch(); }}.detach();
    return made;
  }();
  return *signals;
}

void stop_signals::watch() {
  auto set = stop_set();
  while (true) {
    int number = 0;
    if (sigwait(&set, &number) != 0)
      continue;
    {
      std::lock_guard guard{mutex_};
      if (first_ != 0)
        _exit(128 + number);
      first_ = number;
    }
    changed_.notify_all();
  }
}

int stop_signals::wait() {
  std::unique_lock guard{mutex_};
  changed_.wait(guard, [this] { return first_ != 0; });
  return first_;
}

} // namespace millrace::tools
