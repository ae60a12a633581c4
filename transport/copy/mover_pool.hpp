// The threads that copy.
// Drivers hand them jobs, cut into chunks.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace millrace::transport {

/// Which jobs go first.
enum class job_class {
  transfer,   // an operation waits for it
  background, // preparations: run only while no transfer has a chunk waiting
};

/// Runs chunks of jobs on a bounded number of threads.
///
/// *Problem*: several threads should share one large transfer, and a small transfer must not wait
/// behind it. So jobs take turns of some chunks, and a new job gets its first chunk before the
/// others go on. On a simulated machine there are no threads; each chunk is an event.
class mover_pool {
public:
  /// 0 threads: `default_movers`. Makes as many threads as the system grants, see `check`. `nice`:
  /// by how much their priority is below that of the thread that makes the pool.
  explicit mover_pool(
    std::uint32_t threads, std::uint32_t device_threads = 2, std::uint32_t nice = 0);
  /// Finishes the submitted jobs and joins the threads.
  ~mover_pool();
  mover_pool(const mover_pool&) = delete;
  mover_pool& operator=(const mover_pool&) = delete;

  std::uint32_t threads() const noexcept;
  /// Returns an error if threads are missing.
  /// Errors:  `no_space` if there are fewer threads than asked for. With no thread at all, no job
  ///          ever runs.
  [[nodiscard]] status check() const;

  /// Calls `run(i)` for every i below `chunks`, on any mover, several at a time; then `done()` on
  /// the last one. Neither may block on another job. A job without chunks also ends on a mover.
  void submit(
    std::uint32_t chunks, std::function<void(std::uint32_t)> run, std::function<void()> done,
    job_class kind = job_class::transfer);

  /// Returns a pool for copies by devices, which block their thread while the device works. It is
  /// made at first use. Where the system grants no threads, this pool itself is returned.
  mover_pool& devices();

private:
  struct state;
  struct event;
  std::shared_ptr<state> state_;
  std::uint32_t wanted_ = 0;
  const std::uint32_t device_threads_;
  const std::uint32_t nice_;
  std::once_flag devices_made_;
  std::unique_ptr<mover_pool> devices_;
};

/// Returns how many movers a setting of 0 means: one per core, at most eight.
std::uint32_t default_movers() noexcept;

} // namespace millrace::transport
