// Turns the signals that stop a service into an event to wait for.
// Used by `serve`.
#pragma once

#include <condition_variable>
#include <mutex>

namespace millrace::tools {

/// Lets SIGTERM and SIGINT ask for an orderly end. The second signal ends the process at once.
///
/// *Problem*: a signal handler may call almost no functions, and a signal goes to any thread that
/// does not block it. So every thread blocks it, from before the first thread is made, and one
/// thread waits for it.
class stop_signals {
public:
  /// Blocks the signals in this thread and in the threads that it makes from now on. Ignores
  /// SIGPIPE. Call it once per process, before any other thread; the object lives as long as the
  /// process.
  static stop_signals& install();

  /// Waits for the first signal and returns its number; at once if it has come already.
  int wait();

private:
  stop_signals() = default;
  void watch();

  std::mutex mutex_;
  std::condition_variable changed_;
  int first_ = 0;
};

} // namespace millrace::tools
