// Text for terminals: sizes, durations, aligned tables, and names without control characters.
// Used by the commands' files.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::tools {

/// Returns "0 B", "512 B", "1.5 KiB", "20 GiB".
std::string human_size(std::uint64_t size_bytes);

/// Returns "250 ms", "12 s", "3 min 20 s", "2 h 5 min", "4 d 1 h".
std::string human_duration(std::uint64_t duration_ms);

/// Returns "250 us", "1.25 ms", "12.5 s": three digits, of times that were computed.
std::string human_seconds(double duration_s);

/// Returns "2024-05-01 12:00:00Z".
std::string human_time(std::uint64_t since_epoch_ns);

/// Returns the text on one line and without control characters: a newline becomes "\x0a".
std::string printable(std::string_view text);

/// Returns "a, b".
std::string joined(const std::vector<std::string>& items);

/// Returns "1 model", "3 models".
std::string counted(std::uint64_t count, std::string_view noun);

/// A table whose columns are as wide as their widest cell. A heading that begins with '>' aligns
/// its column to the right.
class table {
public:
  explicit table(std::vector<std::string> headings);
  void add(std::vector<std::string> cells);
  void print(std::ostream& out, std::string_view indent = {}) const;

private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

} // namespace millrace::tools
