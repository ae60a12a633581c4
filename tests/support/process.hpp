// Programs that tests start as children, with their output, their signals and their end.
// Used by system and crash tests.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::testing {

/// The time that a test waits for an event that must happen.
inline constexpr auto patience = std::chrono::seconds{60};

/// Polls until `holds()`, at most `patience`. Returns whether it held.
template <class Condition>
bool eventually(Condition holds);

/// A directory of one test, removed with its contents.
struct scratch {
  std::filesystem::path path;

  scratch();
  /// Makes it under another directory.
  explicit scratch(const std::filesystem::path& parent);
  ~scratch();
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;

  std::string operator/(std::string_view name) const { return (path / name).string(); }
  /// Writes a file and returns its path.
  std::string write(std::string_view name, std::string_view text) const;
};

/// A running program. The destructor kills it and waits for its end.
class child_process {
public:
  /// `uid`: the user to run as, for tests that run as root.
  explicit child_process(std::vector<std::string> command, std::optional<uid_t> uid = std::nullopt);
  ~child_process();
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;

  pid_t pid() const noexcept { return pid_; }
  void signal(int number) const;

  /// Returns the next line that the program prints. Fails the test when the program ends first or
  /// is silent for too long.
  std::string read_line();

  bool ended() { return reap(false); }
  /// Waits for the end. Returns the exit code, or 128 plus the signal that killed the program.
  int wait();
  /// Returns true once the program is stopped by SIGSTOP; false when it ended instead.
  bool wait_stopped();

  /// Returns everything that it has printed so far.
  std::string out() const;
  std::string err() const;

  std::size_t descriptors() const;

private:
  bool reap(bool block_for_stop);

  pid_t pid_ = -1;
  std::optional<int> code_;
  bool stopped_ = false;
  int out_ = -1;
  int err_ = -1;
  std::size_t read_ = 0;
};

struct outcome {
  int code = 0;
  std::string out;
  std::string err;
};

/// Runs a program to its end.
outcome run_program(
  const std::vector<std::string>& command, std::optional<uid_t> uid = std::nullopt);

/// Runs a Python program of the tests with the interpreter of the system. Returns nothing, and the
/// running test counts as skipped, if there is none, or if the program lacks something (status 77,
/// and it says what). `what`: what is left out then.
std::optional<outcome> run_python(std::vector<std::string> arguments, const std::string& what);

std::size_t lines_of(std::string_view text);

void pause_between_polls();

template <class Condition>
bool eventually(Condition holds) {
  auto deadline = std::chrono::steady_clock::now() + patience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline)
      return false;
    pause_between_polls();
  }
  return true;
}

} // namespace millrace::testing
