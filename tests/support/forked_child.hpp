// A forked child that looks at what it inherited and says what it saw. Used by tests of forks.
#pragma once

#include <millrace/tests/support/process.hpp>

#include <boost/test/unit_test.hpp>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace millrace::testing {

/// Runs `body` in a forked child and returns what it returns, which is below 98; 98 if it throws,
/// 1000 and the signal if one ends it. A child that is late gets SIGKILL. The child ends by
/// `_exit`: it reports no leaks to a sanitizer, and destroys nothing of the test.
inline int in_forked_child(const std::function<int()>& body) {
  auto child = ::fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    // The handlers of Boost.Test would go on with the next test.
    for (auto number : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV})
      ::signal(number, SIG_DFL);
    try {
      ::_exit(body());
    } catch (...) {
      ::_exit(98);
    }
  }
  int state = 0;
  if (!eventually([&] { return ::waitpid(child, &state, WNOHANG) == child; })) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &state, 0);
  }
  return WIFEXITED(state) ? WEXITSTATUS(state) : 1000 + WTERMSIG(state);
}

} // namespace millrace::testing
