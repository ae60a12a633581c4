// Catches log lines for a test to read, instead of printing them.
// Used where a log line is part of a promise.
#pragma once

#include <millrace/core/log.hpp>

#include <sstream>
#include <string>

namespace millrace::testing {

/// Catches the log lines of its scope. Make it before the loops that write them.
class kept_log {
public:
  kept_log() : before_(redirect_log(&text_)) {}
  ~kept_log() { redirect_log(before_); }

  /// Counts the lines that contain a text. Call it when the loop that writes them is idle or
  /// stopped.
  std::size_t count(const std::string& part) const {
    std::istringstream in{text_.str()};
    std::size_t n = 0;
    for (std::string line; std::getline(in, line);)
      n += line.find(part) != std::string::npos;
    return n;
  }
  std::string text() const { return text_.str(); }

private:
  std::ostringstream text_;
  std::ostream* before_;
};

} // namespace millrace::testing
