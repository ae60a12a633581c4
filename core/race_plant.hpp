// Deliberate data races, which test that the thread sanitizer watches the places where they are. An
// actor, a session and the I/O loop pass them.
#pragma once

#if defined(MILLRACE_KILL_POINTS)

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace millrace::race_plant {

/// The place that races, from the environment, read once. Null in every ordinary process.
inline const char* const armed = std::getenv("MILLRACE_PLANTED_RACE");

/// Deliberately unguarded.
inline std::uint64_t written = 0;

/// Writes without a lock. The test's own thread writes, too.
inline void write() noexcept { ++written; }

inline void pass(const char* place) noexcept {
  if (std::strcmp(place, armed) == 0)
    write();
}

} // namespace millrace::race_plant

/// Built in by the same option as the kill points.
#define MILLRACE_PLANTED_RACE(place)                                                               \
  do {                                                                                             \
    if (::millrace::race_plant::armed) [[unlikely]]                                                \
      ::millrace::race_plant::pass(place);                                                         \
  } while (false)

#else

#define MILLRACE_PLANTED_RACE(place) static_cast<void>(0)

#endif
