// What a driver reports of itself, beyond the bytes that the fabric counts: `millrace status` shows it as it is.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace::transport {

/// A name and a value: a number or a text. Names end in their unit: `_bytes`, `_bytes_per_s`.
struct report_line {
  std::string name;
  std::string text;
  std::uint64_t number = 0;
  bool is_number = false;

  report_line() = default;
  report_line(std::string line_name, std::uint64_t value)
    : name(std::move(line_name)), number(value), is_number(true) {}
  report_line(std::string line_name, std::string value)
    : name(std::move(line_name)), text(std::move(value)) {}

  friend bool operator==(const report_line&, const report_line&) = default;
};

/// Lines that repeat, once for each of something. All rows have the same names in the same order.
struct report_table {
  std::string name;
  std::vector<std::vector<report_line>> rows;

  friend bool operator==(const report_table&, const report_table&) = default;
};

struct driver_report {
  std::string about; // a word: what the lines describe
  std::vector<report_line> lines;
  std::vector<report_table> tables;

  friend bool operator==(const driver_report&, const driver_report&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, report_line& x) {
  return f(x.name, x.text, x.number, x.is_number);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, report_table& x) {
  return f(x.name, x.rows);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, driver_report& x) {
  return f(x.about, x.lines, x.tables);
}

} // namespace millrace::transport
