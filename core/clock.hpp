// Clocks: a monotonic one for deadlines, the wall clock for records. Used by every room.
#pragma once

#include <chrono>
#include <cstdint>

namespace millrace {

using steady_clock = std::chrono::steady_clock;
using time_point = steady_clock::time_point;

/// The wall clock in nanoseconds since the epoch, as records keep it.
inline std::uint64_t wall_clock_ns() noexcept {
  using namespace std::chrono;
  return static_cast<std::uint64_t>(
    duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count());
}

} // namespace millrace
