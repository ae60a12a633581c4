// The results: a table while the benchmark runs, JSON lines for programs, the goals at the end.
// Used by every section of the benchmarks.
#pragma once

#include <millrace/bench/common/measure.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace::bench {

/// One case. Times are in seconds. An empty field was not measured or has no goal.
struct row {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint64_t transfers = 0; // the number of transfers, where there were many
  samples ours;
  std::string peer;
  std::optional<double> peer_s;
  std::vector<std::pair<std::string, double>> others; // further peers and floors, for comparison
  std::optional<double> floor_s;
  std::string stages;  // the provider's own times of the stages
  std::string machine; // the machine on which it was measured, if not this one

  /// The goals: how many times as fast as the peer, which part of the floor's speed, which part of
  /// it the peer has at most, how long, how large.
  std::optional<double> ratio_min;
  std::optional<double> floor_min;
  std::optional<double> peer_floor_max;
  std::optional<double> seconds_max;
  std::optional<std::uint64_t> bytes_max;
};

class report {
public:
  /// `commit`, `machine`: written into every JSON line, as is the date.
  report(std::string commit, std::string machine)
    : commit_(std::move(commit)), machine_(std::move(machine)) {}

  void print_header() const;
  /// Prints the row and keeps it.
  void add(row r);
  /// Prints every goal with the result. A goal whose peer is missing counts as not measured.
  /// Returns how many were missed.
  std::size_t print_goals() const;
  /// Adds the rows that another run on another machine wrote. Returns that machine.
  /// Errors:  what the operating system says; `corrupt_data`.
  result<std::string> add_from(const std::string& json_path);
  /// Errors: what the operating system says.
  [[nodiscard]] status write_json(const std::string& path) const;

private:
  std::string commit_;
  std::string machine_;
  std::vector<row> rows_;
};

/// Returns the processor, the cores and the memory in one line.
std::string machine_summary();

} // namespace millrace::bench
