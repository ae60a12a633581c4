// Ends work on another thread when the program cancels it.
// Internal, used by calls that report their progress.
#pragma once

#include <millrace/core/progress.hpp>
#include <millrace/core/status.hpp>

#include <cstdint>
#include <mutex>

namespace millrace::runtime {

/// Once `stop` has returned, no callback of the program begins, and none runs on another thread.
/// Threads: any.
class stop_mark {
public:
  void stop() {
    std::lock_guard guard{mutex_};
    stopped_ = true;
  }
  bool is_stopped() {
    std::lock_guard guard{mutex_};
    return stopped_;
  }
  /// Tells the program how far the work is.
  /// Errors:  `cancelled` when it is to end.
  status report(const progress_callback& progress, std::uint64_t done, std::uint64_t total) {
    std::lock_guard guard{mutex_};
    if (!stopped_)
      stopped_ = progress && !progress(done, total);
    return stopped_ ? status{errc::cancelled, "cancelled by the caller"} : status{};
  }

private:
  std::recursive_mutex mutex_; // a callback may cancel
  bool stopped_ = false;
};

} // namespace millrace::runtime
