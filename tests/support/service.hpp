// Runs a real `millrace serve` in a process of its own, and other commands against it. Used by
// system tests.
// The program's path is the definition MILLRACE_PROGRAM.
#pragma once

#include <millrace/tests/support/process.hpp>

#include <optional>
#include <string>
#include <vector>

namespace millrace::testing {

/// The configuration of a test's node. Sizes are small, so that many nodes can start and end.
struct service_options {
  std::string node = "n0";
  std::string providers = "[{ name: fast, capacity: 64MiB }]";
  std::string more{};      // further lines
  std::string node_more{}; // further keys of the section `node`
};

/// One node of a scratch directory. Start, stop and restart it; the directory outlives it.
class service {
public:
  /// Starts the node and waits for the ready line.
  explicit service(const scratch& where, const service_options& options = {});

  const std::string& config() const noexcept { return config_; }
  const std::string& address() const noexcept { return address_; }
  std::string socket() const { return address_.substr(5); }
  const std::string& ready_line() const noexcept { return ready_line_; }
  child_process& process() { return *process_; }

  /// Starts the node (again) with the same configuration.
  void start();
  void kill();
  /// Sends SIGTERM and returns the exit code.
  int stop();

  /// Runs `millrace WORDS... --address ADDRESS`.
  outcome command(std::vector<std::string> words) const;

private:
  std::string config_;
  std::string address_;
  std::string ready_line_;
  std::optional<child_process> process_;
};

/// Runs `millrace WORDS...`.
outcome run_millrace(std::vector<std::string> words, std::optional<uid_t> uid = std::nullopt);

/// Writes the configuration file of a node without serving it.
std::string write_config(const scratch& where, const service_options& options);

} // namespace millrace::testing
