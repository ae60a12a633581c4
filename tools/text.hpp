// Text for people: sizes, durations, aligned tables, names that cannot upset a terminal.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::tools {

/// "0 B", "512 B", "1.5 KiB", "20 GiB": three digits at least.
std::string human_size(std::uint64_t size_bytes);

/// "250 ms", "12 s", "3 min 20 s", "2 h 5 min", "4 d 1 h".
std::string human_duration(std::uint64_t duration_ms);

/// "2024-05-01 12:00:00Z".
std::string human_time(std::uint64_t since_epoch_ns);

/// The text on one line and without control characters: "\n" and the like become "\x0a".
std::string printable(std::string_view text);

/// "a, b".
std::string joined(const std::vector<std::string>& items);

/// "1 model", "3 models".
std::string counted(std::uint64_t count, std::string_view noun);

/// Columns as wide as their widest cell. A heading that begins with '>' aligns to the right.
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
