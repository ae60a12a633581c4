// Time for deadlines (monotonic) and for records (wall clock).
#pragma once

#include <chrono>
#include <cstdint>

namespace millrace {

using steady_clock = std::chrono::steady_clock;
using time_point = steady_clock::time_point;

/// Nanoseconds since the epoch, for "stored at" in records.
inline std::uint64_t wall_clock_ns() noexcept {
  using namespace std::chrono;
  return static_cast<std::uint64_t>(
    duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count());
}

} // namespace millrace
