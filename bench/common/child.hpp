// Processes that the benchmark starts and always ends: services, helpers, Redis.
// Used by the store, checkpoint and transfer benchmarks.
#pragma once

#include <millrace/core/status.hpp>

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace millrace::bench {

/// A running program with pipes to its standard input and output. The destructor ends it by
/// SIGTERM, and by SIGKILL if it does not react. It also dies when this process does.
class child {
public:
  /// Starts `arguments[0]`, looked up in PATH. `quiet` drops its standard error.
  static result<child> start(const std::vector<std::string>& arguments, bool quiet = false);

  child() = default;
  child(child&& other) noexcept { *this = std::move(other); }
  child& operator=(child&& other) noexcept;
  ~child() { stop(); }

  /// Sends one line.
  /// Errors:  `peer_lost`.
  [[nodiscard]] status write_line(const std::string& line);

  /// Returns the next line that it prints.
  /// Errors:  `deadline_exceeded`; `peer_lost` when it has ended.
  result<std::string> read_line(int timeout_ms);

  bool running() const noexcept { return pid_ > 0; }
  pid_t pid() const noexcept { return pid_; }
  /// Returns what it has spent on cores so far; 0 if it does not run.
  double core_seconds() const noexcept;
  void stop() noexcept;

private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  std::string unread_;
};

/// A directory that its destructor removes.
class scratch_directory {
public:
  explicit scratch_directory(const std::string& parent);
  ~scratch_directory();
  scratch_directory(const scratch_directory&) = delete;
  scratch_directory& operator=(const scratch_directory&) = delete;

  const std::string& path() const noexcept { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

private:
  std::string path_;
};

/// Makes SIGINT and SIGTERM remove every scratch directory and end this process; the kernel then
/// ends its children. Call it before any thread is started.
void clean_up_on_signals();

/// Returns what a process has spent on cores so far, 0 if there is none; of process 0: of this one.
double core_seconds_of(pid_t process) noexcept;

} // namespace millrace::bench
