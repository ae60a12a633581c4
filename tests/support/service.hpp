// A real `millrace serve` in a process of its own, and the other commands run against it.
// The program's path is the definition MILLRACE_PROGRAM.
#pragma once

#include <millrace/tests/support/process.hpp>

#include <optional>
#include <string>
#include <vector>

namespace millrace::testing {

/// What the configuration of a test's node says; sizes are small, so that many start and end.
struct service_options {
  std::string node = "n0";
  std::string providers = "[{ name: fast, capacity: 64MiB }]";
  std::string more{};      // further lines
  std::string node_more{}; // of the section `node`
};

/// One node of a scratch directory. Start, stop and restart it; the directory outlives it.
class service {
public:
  /// Starts and waits for the ready line.
  explicit service(const scratch& where, const service_options& options = {});

  const std::string& config() const noexcept { return config_; }
  const std::string& address() const noexcept { return address_; }
  std::string socket() const { return address_.substr(5); }
  const std::string& ready_line() const noexcept { return ready_line_; }
  child_process& process() { return *process_; }

  /// Starts it (again) with the same configuration.
  void start();
  void kill();
  /// SIGTERM; returns the exit code.
  int stop();

  /// `millrace WORDS... --address ADDRESS`.
  outcome command(std::vector<std::string> words) const;

private:
  std::string config_;
  std::string address_;
  std::string ready_line_;
  std::optional<child_process> process_;
};

/// `millrace WORDS...`.
outcome run_millrace(std::vector<std::string> words, std::optional<uid_t> uid = std::nullopt);

/// The configuration file of a node, written but not served.
std::string write_config(const scratch& where, const service_options& options);

} // namespace millrace::testing
