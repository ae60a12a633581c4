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
  std::string guest; // of programs that take one: see guest.hpp
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

/// What a program `bench_<name>` is, for `run_program`.
struct program {
  const char* name;
  const char* what; // of --help
  std::vector<std::string> sections;
  int (*run)(const model_options&);
  bool takes_guest = false; // some sections need an RDMA device
};

/// Is the main function of a benchmark that starts services: serves, if the arguments are those of
/// its child; otherwise runs it with the options of the command line. Prints what is thrown.
/// Returns the exit code.
int run_program(int argc, char** argv, const program& of);

} // namespace millrace::bench
