// The process that a crash test kills. It starts with a kill point and obeys commands line by line.
// Used by crash tests.
#pragma once

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

namespace millrace::testing {

/// The process under test, and the pipes to it.
class crash_child {
public:
  /// Starts `program` with one argument. `kill_point` is the value of `MILLRACE_KILL_POINT`, or
  /// empty.
  crash_child(
    const std::string& program, const std::string& argument, const std::string& kill_point) {
    // Writing to a dead child must not end this process.
    ::signal(SIGPIPE, SIG_IGN);
    int to[2], from[2];
    BOOST_REQUIRE(::pipe2(to, O_CLOEXEC) == 0 && ::pipe2(from, O_CLOEXEC) == 0);
    pid_ = ::fork();
    BOOST_REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::dup2(to[0], 0);
      ::dup2(from[1], 1);
      if (!kill_point.empty())
        ::setenv("MILLRACE_KILL_POINT", kill_point.c_str(), 1);
      ::execl(program.c_str(), program.c_str(), argument.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    in_ = to[1];
    out_ = from[0];
  }
  ~crash_child() {
    kill();
    ::close(in_);
    ::close(out_);
  }

  void kill() {
    // The child is reaped only after the killer has ended: the process id might belong to another
    // process by then.
    if (killer_.joinable())
      killer_.join();
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      int status = 0;
      ::waitpid(pid_, &status, 0);
      pid_ = -1;
      BOOST_CHECK_MESSAGE(
        WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
        "the child ended by itself, with wait status " << status);
    }
  }

  /// Kills the child a little later, from another thread.
  void kill_after(std::chrono::microseconds delay) {
    killer_ = std::jthread{[pid = pid_, delay] {
      std::this_thread::sleep_for(delay);
      ::kill(pid, SIGKILL);
    }};
  }

  void say(const std::string& line) {
    auto text = line + "\n";
    static_cast<void>(::write(in_, text.data(), text.size()));
  }

  /// Returns the next line; nothing when the child is gone. A child that is silent for a minute
  /// fails the test.
  std::optional<std::string> hear() {
    std::string line;
    for (;;) {
      pollfd ready{out_, POLLIN, 0};
      BOOST_REQUIRE_MESSAGE(::poll(&ready, 1, 60'000) == 1, "no answer from the child");
      char c;
      if (::read(out_, &c, 1) != 1)
        return std::nullopt;
      if (c == '\n')
        return line;
      line.push_back(c);
    }
  }

private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::jthread killer_;
};

} // namespace millrace::testing
