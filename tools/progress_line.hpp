// Shows the progress of a long operation on one line of a terminal.
// Used by commands that copy.
#pragma once

#include <millrace/core/progress.hpp>
#include <millrace/tools/command.hpp>

#include <chrono>
#include <string>

namespace millrace::tools {

/// Draws on standard error, if that is a terminal and --json was not given. The line is erased when
/// this is destroyed.
class progress_line {
public:
  progress_line(const invocation& call, std::string what);
  ~progress_line();
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;

  /// Draws the progress, at most ten times a second.
  void show(std::uint64_t done, std::uint64_t total);

  /// Returns `show` as a callback, which this object must outlive.
  progress_callback callback();

private:
  using clock = std::chrono::steady_clock;

  bool on_;
  std::string what_;
  clock::time_point begun_ = clock::now();
  clock::time_point drawn_{};
  bool visible_ = false;
};

/// Returns the text to draw: "layer.pt [#####     ] 50%  1.2 GiB of 2.4 GiB  800 MiB/s, 1 s left".
/// Without a total it is "repack [   #   ] 12 s" with a mark that moves.
std::string progress_text(
  const std::string& what, std::uint64_t done, std::uint64_t total,
  std::chrono::milliseconds spent);

} // namespace millrace::tools
