// Rounds, pads and escapes text.
#include <millrace/core/assert.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <ostream>

namespace millrace::tools {

namespace {

// Counts characters instead of bytes, so that columns of UTF-8 names are aligned.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

} // namespace

std::string human_size(std::uint64_t size_bytes) {
  constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  auto value = static_cast<double>(size_bytes);
  // A value from 1023.5 on would be printed as 1024.
  while (value >= 1023.5 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  bool whole = value == static_cast<double>(static_cast<std::uint64_t>(value));
  auto format = whole || value >= 99.95 ? "%.0f %s" : value >= 9.995 ? "%.1f %s" : "%.2f %s";
  std::snprintf(text.data(), text.size(), format, value, units[unit]);
  return text.data();
}

std::string human_duration(std::uint64_t duration_ms) {
  auto both = [](std::uint64_t large, const char* unit, std::uint64_t small, const char* below) {
    return small == 0 ? fmt::format("{} {}", large, unit)
                      : fmt::format("{} {} {} {}", large, unit, small, below);
  };
  auto seconds = duration_ms / 1000;
  if (seconds == 0)
    return fmt::format("{} ms", duration_ms);
  if (seconds < 60)
    return fmt::format("{} s", seconds);
  if (seconds < 3600)
    return both(seconds / 60, "min", seconds % 60, "s");
  if (seconds < 86400)
    return both(seconds / 3600, "h", seconds % 3600 / 60, "min");
  return both(seconds / 86400, "d", seconds % 86400 / 3600, "h");
}

std::string human_seconds(double duration_s) {
  constexpr std::array units = {"us", "ms", "s"};
  auto value = duration_s * 1e6;
  std::size_t unit = 0;
  // A value from 999.5 on would be printed as 1000.
  for (; value >= 999.5 && unit + 1 < units.size(); ++unit)
    value /= 1000;
  auto digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, digits, units[unit]);
}

std::string human_time(std::uint64_t since_epoch_ns) {
  auto seconds = static_cast<std::time_t>(since_epoch_ns / 1'000'000'000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%SZ", &parts);
  return text.data();
}

std::string printable(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto c = static_cast<unsigned char>(text[i]);
    // C1 control characters are encoded as C2 80 to C2 9F.
    bool c1 = c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c >= 0x20 && c != 0x7f && !c1) {
      out += text[i];
      continue;
    }
    if (c1)
      c = static_cast<unsigned char>(text[++i]);
    out += "\\x";
    out += digits[c >> 4];
    out += digits[c & 15];
  }
  return out;
}

std::string joined(const std::vector<std::string>& items) {
  return fmt::format("{}", fmt::join(items, ", "));
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

table::table(std::vector<std::string> headings) {
  for (auto& heading : headings) {
    right_.push_back(!heading.empty() && heading.front() == '>');
    if (right_.back())
      heading.erase(0, 1);
  }
  rows_.push_back(std::move(headings));
}

void table::add(std::vector<std::string> cells) {
  MILLRACE_ASSERT(cells.size() == right_.size());
  for (auto& cell : cells)
    cell = printable(cell);
  rows_.push_back(std::move(cells));
}

void table::print(std::ostream& out, std::string_view indent) const {
  std::vector<std::size_t> widths(right_.size());
  for (auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], width_of(row[i]));
  for (auto& row : rows_) {
    std::string line{indent};
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string padding(widths[i] - width_of(row[i]), ' ');
      line += (i == 0 ? "" : "  ") + (right_[i] ? padding + row[i] : row[i] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

} // namespace millrace::tools
