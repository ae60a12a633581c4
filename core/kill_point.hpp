// Kill points: named places at which crash tests end the process. They stand in storage code whose
// order of writes matters.
#pragma once

#if defined(MILLRACE_KILL_POINTS)

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

namespace millrace {

namespace detail {

/// `NAME` or `NAME:COUNT` from the environment, read once. Null in every ordinary process.
inline const char* const armed_kill_point = std::getenv("MILLRACE_KILL_POINT");

/// Ends the process when `name` is the armed point and is passed for the COUNT-th time (1 if left
/// out).
inline void pass_kill_point(const char* name) noexcept {
  static int passed = 0;
  auto length = std::strlen(name);
  if (std::strncmp(armed_kill_point, name, length) != 0)
    return;
  auto rest = armed_kill_point + length;
  if (*rest != '\0' && *rest != ':')
    return;
  auto count = *rest == ':' ? std::atoi(rest + 1) : 1;
  if (__atomic_add_fetch(&passed, 1, __ATOMIC_RELAXED) == count)
    ::kill(::getpid(), SIGKILL);
}

} // namespace detail

} // namespace millrace

/// Costs one predictable branch. The option `MILLRACE_KILL_POINTS`, set by the presets for tests,
/// builds the points in. Shipped builds have none, so no environment variable can end them.
#define MILLRACE_KILL_POINT(name)                                                                  \
  do {                                                                                             \
    if (::millrace::detail::armed_kill_point) [[unlikely]]                                         \
      ::millrace::detail::pass_kill_point(name);                                                   \
  } while (false)

#else

#define MILLRACE_KILL_POINT(name) static_cast<void>(0)

#endif
