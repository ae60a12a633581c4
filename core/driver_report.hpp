// The counts of every driver with every peer, and the report of a driver about itself. The fabric
// makes both; `millrace status` shows them unchanged.
#pragma once

#include <millrace/core/inspect.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

/// The counts of one driver with one peer, since the start.
struct path_stats {
  std::string peer;
  std::string driver;
  std::uint64_t bytes = 0;
  std::uint64_t transfers = 0;
  std::uint64_t failures = 0;
  bool chosen = false;                // the next transfer with the peer uses this driver
  std::uint64_t rate_bytes_per_s = 0; // of the last ten seconds
  std::uint64_t fallbacks = 0; // transfers that failed here and that another driver took over
  std::string last_reason;     // the reason of the last failure
  std::string carrier;         // the driver that carried the bytes of the last transfer

  friend bool operator==(const path_stats&, const path_stats&) = default;
};
MILLRACE_INSPECT(
  path_stats, x.peer, x.driver, x.bytes, x.transfers, x.failures, x.chosen, x.rate_bytes_per_s,
  x.fallbacks, x.last_reason, x.carrier)

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

/// Repeated lines, one row for each object. All rows have the same names in the same order.
struct report_table {
  std::string name;
  std::vector<std::vector<report_line>> rows;

  friend bool operator==(const report_table&, const report_table&) = default;
};

/// A driver's report about itself.
struct driver_report {
  std::string about; // one word that says what the lines describe
  std::vector<report_line> lines;
  std::vector<report_table> tables;

  friend bool operator==(const driver_report&, const driver_report&) = default;
};
MILLRACE_INSPECT(report_line, x.name, x.text, x.number, x.is_number)
MILLRACE_INSPECT(report_table, x.name, x.rows)
MILLRACE_INSPECT(driver_report, x.about, x.lines, x.tables)

} // namespace millrace
