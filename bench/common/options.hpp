// The command line that the larger benchmarks share.
// Called by their main functions.
#pragma once

#include <millrace/bench/common/report.hpp>

#include <CLI/CLI.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace millrace::bench {

struct run_options {
  bool quick = false;
  bool no_peers = false;
  bool strict = false;
  std::string json, only, commit;
  std::size_t rounds = 0; // 0: as many as the benchmark chooses
};

/// Also of the benchmarks that store models.
struct model_options : run_options {
  std::string model;
  std::string memory = "/dev/shm";
  std::string disk = "/var/tmp";
};

/// The exit code of a run with --strict that missed a goal. 1 means that it failed, 2 that its
/// arguments are wrong.
inline constexpr int exit_goal_missed = 3;

/// Begins a run: has signals clean up, and prints the machine and the commit. Returns the report.
report begin_run(const run_options& o);

/// Ends a run: prints the goals and writes the JSON file, if one is wanted. Returns the exit code.
int finish(const report& out, const run_options& o);

/// Adds the options to a command line whose `--only` takes one of `sections`.
void add_options(CLI::App& app, run_options& o, const std::vector<std::string>& sections);
void add_options(CLI::App& app, model_options& o, const std::vector<std::string>& sections);

} // namespace millrace::bench
