// The log: one line per event to standard error, `key=value` after the sentence.
// Used by every room. Lines are formatted in log.cpp: fmt's formatter, instantiated in each file
// that logs, was a quarter of the library's code and of the time to compile it.
#pragma once

#include <fmt/core.h>

#include <iosfwd>
#include <string>

namespace millrace {

/// How much a line matters.
enum class log_level { trace, debug, info, warn, error, off };

/// Millrace's own logger; a program that embeds the library keeps its own. Any thread.
class logger {
public:
  template <class... T>
  void debug(fmt::format_string<T...> text, T&&... values) {
    write(log_level::debug, text, fmt::make_format_args(values...));
  }
  template <class... T>
  void info(fmt::format_string<T...> text, T&&... values) {
    write(log_level::info, text, fmt::make_format_args(values...));
  }
  template <class... T>
  void warn(fmt::format_string<T...> text, T&&... values) {
    write(log_level::warn, text, fmt::make_format_args(values...));
  }
  template <class... T>
  void error(fmt::format_string<T...> text, T&&... values) {
    write(log_level::error, text, fmt::make_format_args(values...));
  }
  template <class... T>
  void at(log_level level, fmt::format_string<T...> text, T&&... values) {
    write(level, text, fmt::make_format_args(values...));
  }

private:
  static void write(log_level level, fmt::string_view text, fmt::format_args values);
};

/// Returns the logger. It writes to standard error, from level `warn` up unless `configure_log`
/// sets another.
inline logger log() { return {}; }

/// Sets the level by name: trace, debug, info, warn, error, off.
/// Returns false for an unknown name, and leaves the level as it is. Any thread.
bool configure_log(const std::string& level);

/// Sends the lines to a stream, or to standard error for null; returns where they went before.
/// The logger writes to the stream until the next call, one line at a time. Any thread.
std::ostream* redirect_log(std::ostream* to);

} // namespace millrace
