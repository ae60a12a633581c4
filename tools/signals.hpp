// Signals of a service: turned into something that can be waited for. Used by `serve`.
#pragma once

#include <condition_variable>
#include <mutex>

namespace millrace::tools {

/// Lets SIGTERM and SIGINT ask for an orderly end; the second one ends the process at once.
///
/// *Problem*: a handler may do next to nothing, and a signal goes to any thread that does not block
/// it. So all block it, from before the first one is made, and one thread waits for it.
class stop_signals {
public:
  /// Blocks the signals in this thread and those it makes from now on. Ignores SIGPIPE.
  /// Make one a process, before any other thread; it lives as long as the process.
  static stop_signals& install();

  /// Waits for the first signal and returns its number; at once if it came before.
  int wait();

private:
  stop_signals() = default;
  void watch();

  std::mutex mutex_;
  std::condition_variable changed_;
  int first_ = 0;
};

} // namespace millrace::tools
