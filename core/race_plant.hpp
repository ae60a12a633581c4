// Data races that are there on purpose, so that a test may ask whether the thread sanitizer sees the places where they
// lie. Passed by an actor, a session and the I/O loop.
#pragma once

#if defined(MILLRACE_KILL_POINTS)

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace millrace::race_plant {

/// The place that races, from the environment, read once; null in every ordinary process.
inline const char* const armed = std::getenv("MILLRACE_PLANTED_RACE");

/// Guarded by nothing.
inline std::uint64_t written = 0;

/// Writes it as any thread may. The test's own thread does, too.
inline void write() noexcept { ++written; }

inline void pass(const char* place) noexcept {
  if (std::strcmp(place, armed) == 0)
    write();
}

} // namespace millrace::race_plant

/// Built in and left out together with the kill points.
#define MILLRACE_PLANTED_RACE(place)                                                               \
  do {                                                                                             \
    if (::millrace::race_plant::armed) [[unlikely]]                                                \
      ::millrace::race_plant::pass(place);                                                         \
  } while (false)

#else

#define MILLRACE_PLANTED_RACE(place) static_cast<void>(0)

#endif
