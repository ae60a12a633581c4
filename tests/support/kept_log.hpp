// Catches log lines for a test to read, instead of printing them.
// Used where a log line is part of a promise.
#pragma once

#include <millrace/core/log.hpp>

#include <mutex>
#include <ostream>
#include <sstream>
#include <streambuf>
#include <string>

namespace millrace::testing {

/// Catches the log lines of its scope. Make it before the loops that write them. A test may read
/// it while they write.
class kept_log {
public:
  kept_log() : before_(redirect_log(&out_)) {}
  ~kept_log() { redirect_log(before_); }

  /// Counts the lines that contain a text.
  std::size_t count(const std::string& part) const {
    std::istringstream in{text()};
    std::size_t n = 0;
    for (std::string line; std::getline(in, line);)
      n += line.find(part) != std::string::npos;
    return n;
  }
  std::string text() const { return buffer_.text(); }

private:
  // The log has a lock of its own, which a reader cannot take.
  class locked_buffer : public std::streambuf {
  public:
    std::string text() const {
      std::lock_guard guard{mutex_};
      return text_;
    }

  protected:
    int_type overflow(int_type c) override {
      std::lock_guard guard{mutex_};
      if (!traits_type::eq_int_type(c, traits_type::eof()))
        text_ += traits_type::to_char_type(c);
      return traits_type::not_eof(c);
    }
    std::streamsize xsputn(const char* from, std::streamsize count) override {
      std::lock_guard guard{mutex_};
      text_.append(from, static_cast<std::size_t>(count));
      return count;
    }

  private:
    mutable std::mutex mutex_;
    std::string text_;
  };

  locked_buffer buffer_;
  std::ostream out_{&buffer_};
  std::ostream* before_;
};

} // namespace millrace::testing
