// The parts of every command: its place in the command line, its output, its exit code.
// Used by each command's file.
#pragma once

#include <millrace/core/status.hpp>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace millrace::tools {

enum exit_code : int {
  exit_ok = 0,
  exit_failed = 1, // the operation failed
  exit_usage = 2,  // the arguments or the configuration are wrong
};

/// One run of the program.
struct invocation {
  std::ostream& out;
  std::ostream& err;
  std::vector<std::string> arguments;
  bool json = false;
  std::string command{};         // "models rm", for errors
  std::function<int()> chosen{}; // runs the command that the arguments name
};

/// The reason why a command fails, and its exit code.
struct failure {
  status why;
  int code = exit_failed;
};

/// Prints one line "millrace: COMMAND: why" to the error stream, or with --json {"error": {"code",
/// "detail"}}. Leaves out the middle of a very long text. Returns the exit code.
int report(invocation& call, const failure& f);
inline int report(invocation& call, const status& why) { return report(call, failure{why}); }

/// Adds a command that takes --json. `run` is called once the whole line is parsed.
CLI::App* add_command(
  CLI::App& parent, invocation& call, const std::string& name, const std::string& what,
  std::function<int()> run);

/// Adds a command that `run` is given the options of. The caller tells the parser where they go.
template <class Options>
std::pair<CLI::App*, std::shared_ptr<Options>> add_command(
  CLI::App& parent, invocation& call, const std::string& name, const std::string& what,
  int (*run)(invocation& call, const Options& options)) {
  auto options = std::make_shared<Options>();
  auto* command =
    add_command(parent, call, name, what, [&call, options, run] { return run(call, *options); });
  return {command, std::move(options)};
}

/// Checks options that are whole numbers of 64 bits at most. CLI11's own conversion takes "-1" for
/// the largest number, truncates larger ones, and does not say what is wrong.
CLI::Validator whole_number(std::uint64_t least = 0, std::uint64_t most = UINT64_MAX);

/// Makes `app` the whole command line, with every command in the order of `millrace --help`.
void add_commands(CLI::App& app, invocation& call);

// Each function has a file of its own. `run.cpp` has the table.
void add_serve_command(CLI::App& app, invocation& call);
void add_status_command(CLI::App& app, invocation& call);
void add_models_command(CLI::App& app, invocation& call);
void add_checkpoints_command(CLI::App& app, invocation& call);
void add_data_command(CLI::App& app, invocation& call);
void add_pool_command(CLI::App& app, invocation& call);
void add_cluster_command(CLI::App& app, invocation& call);
void add_config_command(CLI::App& app, invocation& call);
void add_doctor_command(CLI::App& app, invocation& call);
void add_predict_command(CLI::App& app, invocation& call);

} // namespace millrace::tools
