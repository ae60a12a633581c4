// Starts threads of the runtime: none of them runs a signal handler of the program.
#pragma once

#include <pthread.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <utility>

namespace millrace {

/// Keeps signals from this thread while it lives, and from the threads that are started meanwhile
/// for as long as they run. A thread's own faults still reach the program's handlers.
class signals_blocked {
public:
  signals_blocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    for (auto fault : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP})
      sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~signals_blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  signals_blocked(const signals_blocked&) = delete;
  signals_blocked& operator=(const signals_blocked&) = delete;

private:
  sigset_t before_;
};

/// Starts a thread of the runtime.
/// Throws `std::system_error` if the system gives no thread.
template <class F>
std::thread background_thread(F&& run) {
  signals_blocked while_it_starts;
  return std::thread{std::forward<F>(run)};
}

/// Makes the calling thread give way to those of the priority that it had. Returns false, with
/// `errno`, if it keeps its priority.
inline bool lower_priority(std::uint32_t nice) {
  // On Linux this is the thread's own. The bound of nice values cuts the sum.
  auto now = ::getpriority(PRIO_PROCESS, 0);
  return nice == 0 || ::setpriority(PRIO_PROCESS, 0, now + static_cast<int>(nice)) == 0;
}

} // namespace millrace
