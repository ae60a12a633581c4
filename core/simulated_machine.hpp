// The seam through which a test simulates the machine below a whole cluster: its clocks, its random
// numbers, its processes, and threads. Used by clocks, identities and pools of threads.
#pragma once

#include <millrace/core/ids.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace millrace {

/// What code asks of the machine besides sockets and files. One thread runs everything on a
/// simulated machine, so nothing here is called by two threads at once.
class simulated_machine {
public:
  using nanoseconds = std::chrono::nanoseconds;

  virtual ~simulated_machine() = default;

  /// The monotonic clock, and the wall clock.
  virtual nanoseconds now() noexcept = 0;
  virtual std::uint64_t wall_clock_ns() noexcept = 0;

  /// Returns the identity of the process that runs now.
  virtual const peer_id& this_peer() noexcept = 0;
  virtual std::uint32_t this_pid() noexcept = 0;

  virtual void fill_random(std::byte* data, std::size_t size_bytes) noexcept = 0;

  /// Stands for a job of another thread of the process that runs now. If the process dies in the
  /// meantime, no other process sees what the job does.
  virtual void run_later(std::function<void()> job, nanoseconds delay = {}) = 0;

  /// Stands for blocking: other things of the machine happen until `done()` holds or the monotonic
  /// clock reaches `deadline`. Returns `done()`.
  virtual bool run_until(const std::function<bool()>& done, nanoseconds deadline) = 0;
};

#if defined(MILLRACE_KILL_POINTS)
/// Set while no thread runs, by a test that simulates.
inline constinit simulated_machine* simulating_machine = nullptr;
#endif

/// Returns null but in a test that simulates; always in builds without kill points.
inline simulated_machine* simulated() noexcept {
#if defined(MILLRACE_KILL_POINTS)
  return simulating_machine;
#else
  return nullptr;
#endif
}

} // namespace millrace
