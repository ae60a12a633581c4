// Finds out whether a test can act as another user on this machine, and does something as one.
// Used by tests that run as root.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace millrace::testing {

/// Returns why `uid` cannot take part in a test; empty when it can. Only root can become another
/// user, and on some systems other users cannot enter the root directory. `program`: what the user
/// is to run.
inline std::string why_not_as(uid_t uid, const std::string& program = {}) {
  if (::geteuid() != 0)
    return "needs root";
  for (auto& place : {std::filesystem::temp_directory_path().string(), program}) {
    if (place.empty())
      continue;
    auto child = ::fork();
    if (child == 0)
      ::_exit(::setuid(uid) == 0 && ::access(place.c_str(), X_OK) == 0 ? 0 : 1);
    int state = 0;
    ::waitpid(child, &state, 0);
    if (!WIFEXITED(state) || WEXITSTATUS(state) != 0)
      return "no other user reaches " + place;
  }
  return "";
}

/// Returns what `f` returns when root calls it with the rights of `uid`. The process is root again
/// afterwards.
template <class F>
auto as_user(uid_t uid, F f) {
  if (::seteuid(uid) != 0)
    std::abort();
  auto out = f();
  if (::seteuid(0) != 0)
    std::abort();
  return out;
}

} // namespace millrace::testing
