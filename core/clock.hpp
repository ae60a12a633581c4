// Clocks: a monotonic one for deadlines, the wall clock for records; and waiting. Used by every
// room.
#pragma once

#include <millrace/core/simulated_machine.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace millrace {

/// The monotonic clock of this machine.
struct steady_clock {
  using base = std::chrono::steady_clock;
  using rep = base::rep;
  using period = base::period;
  using duration = base::duration;
  using time_point = base::time_point;
  static constexpr bool is_steady = true;

  static time_point now() noexcept {
    if (simulated()) [[unlikely]]
      return time_point{simulated()->now()};
    return base::now();
  }
};
using time_point = steady_clock::time_point;

/// The wall clock in nanoseconds since the epoch, as records keep it.
inline std::uint64_t wall_clock_ns() noexcept {
  if (simulated()) [[unlikely]]
    return simulated()->wall_clock_ns();
  auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
    std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch).count());
}

/// Waits until `done()` holds or the deadline passes. `lock` is held while `done()` is called.
/// Returns `done()`.
template <class Done>
bool wait_until(
  std::condition_variable& changed, std::unique_lock<std::mutex>& lock, time_point deadline,
  Done done) {
  if (!simulated()) [[likely]]
    return changed.wait_until(lock, deadline, done);
  lock.unlock();
  static_cast<void>(simulated()->run_until(
    [&] {
      std::lock_guard guard{*lock.mutex()};
      return done();
    },
    deadline.time_since_epoch()));
  lock.lock();
  return done();
}

inline void sleep_for(steady_clock::duration time) {
  if (simulated()) [[unlikely]]
    simulated()->run_until([] { return false; }, simulated()->now() + time);
  else
    std::this_thread::sleep_for(time);
}

} // namespace millrace
