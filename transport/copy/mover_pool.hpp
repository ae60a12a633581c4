// The threads that copy.
// Drivers hand them jobs, cut into chunks.
#pragma once

#include <millrace/core/status.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace millrace::transport {

/// Which jobs go first.
enum class job_class {
  transfer,   // an operation waits for it
  background, // preparations: run only while no other job has a chunk waiting
  urgent,     // a transfer that the program waits for: movers that yield leave it to urgent ones
};

/// How movers yield to the program.
struct yielding {
  std::uint32_t nice = 0; // by how much their priority is below the program's; 0: they do not yield
  std::chrono::milliseconds patience{2'000}; // after this, transfers are urgent
};

/// Runs chunks of jobs on a bounded number of threads.
///
/// *Problem*: several threads should share one large transfer, and a small transfer must not wait
/// behind it. So jobs take turns of some chunks, and a new job gets its first chunk before the
/// others go on. On a simulated machine there are no threads; each chunk is an event.
///
/// *Problem*: copying must not slow a program that computes on every core; and it must end soon
/// where the program waits for it, or where another program takes every core. A thread cannot raise
/// its priority without a privilege. So a pool that yields has a second set of threads, as many,
/// which keep the priority of the program and sleep until work is urgent: jobs of that class, and
/// all transfers while a `hurry` exists, while the pool ends, and when transfers have been
/// unfinished without a break for as long as the patience. After that they stay urgent until there
/// is a break as long as the patience, or the last `hurry` ends. What is urgent is left to these
/// threads alone, so that it waits at most for the chunks that other movers have begun.
class mover_pool {
public:
  /// 0 threads: `default_movers`. Makes as many threads as the system grants, see `check`. Their
  /// priority is that of the thread that makes the pool, or below, see `yielding`.
  explicit mover_pool(
    std::uint32_t threads, std::uint32_t device_threads = 2, const yielding& how = {});
  /// Stops, see `stop`.
  ~mover_pool();
  mover_pool(const mover_pool&) = delete;
  mover_pool& operator=(const mover_pool&) = delete;

  /// Finishes the submitted jobs, also those of devices, and joins the threads; a mover that calls
  /// it goes on alone. Jobs that are submitted later are dropped. The second call does nothing.
  /// Threads: one at a time; none may call `devices` meanwhile.
  void stop();

  /// Returns how many threads copy at a time.
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

  /// Makes all transfers urgent, those of devices too, until the returned pointer and its copies
  /// are gone: the program waits. Null if the movers do not yield.
  /// Threads: any.
  [[nodiscard]] std::shared_ptr<void> hurry();

  /// Keeps the threads, those for devices too, on these processors until the returned pointer and
  /// its copies are gone; with several such calls, on the processors of all. Each thread goes there
  /// before its next chunk, and never to one on which it could not run when it began. Null without
  /// processors.
  /// Threads: any.
  [[nodiscard]] std::shared_ptr<void> keep_on(std::vector<std::uint32_t> processors);
  /// Returns the processors on which the threads are to stay; none: they may run anywhere.
  std::vector<std::uint32_t> kept_on() const;

  /// Returns a pool for copies by devices, which block their thread while the device works. It is
  /// made at first use. Where the system grants no threads, this pool itself is returned.
  mover_pool& devices();

private:
  struct state;
  struct event;
  class places;
  using count = std::shared_ptr<std::atomic<std::uint32_t>>;

  // What is shared with the pool for devices.
  struct shared {
    count hurries;
    std::shared_ptr<places> kept;
  };
  static shared make_shared();

  mover_pool(
    std::uint32_t threads, std::uint32_t device_threads, const yielding& how, const shared& with);

  std::shared_ptr<state> state_;
  std::uint32_t wanted_ = 0;
  const std::uint32_t device_threads_;
  const yielding how_;
  std::once_flag devices_made_;
  std::unique_ptr<mover_pool> devices_;
};

/// Returns how many movers a setting of 0 means: one per core, at most eight.
std::uint32_t default_movers() noexcept;

} // namespace millrace::transport
