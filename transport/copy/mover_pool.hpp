// The threads that copy. Drivers hand them jobs cut into chunks.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace millrace::transport {

/// Who goes first.
enum class job_class {
  transfer,   // somebody waits for it
  background, // preparations: only while no transfer has a chunk waiting
};

/// Runs chunks of jobs on a bounded number of threads.
///
/// *Problem*: several threads should share one large transfer, and a small one must not wait behind it. So
/// jobs take turns of some chunks, and one that is new gets its first chunk before the others go on.
class mover_pool {
public:
  /// 0 threads: `default_movers`. Makes as many as the system gives, which `check` tells.
  explicit mover_pool(std::uint32_t threads, std::uint32_t device_threads = 2);
  /// Finishes what was submitted, and joins.
  ~mover_pool();
  mover_pool(const mover_pool&) = delete;
  mover_pool& operator=(const mover_pool&) = delete;

  std::uint32_t threads() const noexcept;
  /// Errors: `no_space` if there are fewer threads than asked for. Without any nothing is ever run.
  [[nodiscard]] status check() const;

  /// Calls `run(i)` for every i below `chunks`, on any mover, several at a time; then `done()` on the last.
  /// Neither may block on another job. A job without chunks is done on a mover, too.
  void submit(
    std::uint32_t chunks, std::function<void(std::uint32_t)> run, std::function<void()> done,
    job_class kind = job_class::transfer);

  /// A pool for copies by devices, which block their thread while it has nothing to do. Made when it is first asked
  /// for; where the system gives no threads, this one.
  mover_pool& devices();

private:
  struct state;
  std::shared_ptr<state> state_;
  std::uint32_t wanted_ = 0;
  const std::uint32_t device_threads_;
  std::once_flag devices_made_;
  std::unique_ptr<mover_pool> devices_;
};

/// How many movers a setting of 0 means: one a core, at most eight.
std::uint32_t default_movers() noexcept;

} // namespace millrace::transport
