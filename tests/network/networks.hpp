// Hosts of a small network, each a network namespace, joined by a switch that loses, delays and
// cuts. Used by tests of what passes between hosts. The switch's path is the definition
// MILLRACE_WIRE.
#pragma once

#include <millrace/tests/support/process.hpp>

#include <memory>
#include <string>
#include <vector>

namespace millrace::testing {

/// Why there can be no networks here; empty when they can: they need root, `ip` and `ethtool`, and
/// a kernel with namespaces and veth pairs.
std::string why_no_networks();

/// Number i has the addresses 10.99.0.(i+1) and fd99::(i+1), and shares files and processes with
/// this host.
class networks {
public:
  explicit networks(int hosts);
  ~networks();
  networks(const networks&) = delete;
  networks& operator=(const networks&) = delete;

  std::string address(int host) const { return "10.99.0." + std::to_string(host + 1); }
  std::string address6(int host) const { return "fd99::" + std::to_string(host + 1); }

  /// The command that runs `words` on that host.
  std::vector<std::string> on(int host, std::vector<std::string> words) const;

  /// Part of all frames, lost by chance.
  void lose(double percent) { tell("loss " + std::to_string(percent)); }
  void delay(int ms) { tell("delay " + std::to_string(ms)); }
  /// Nothing passes between the two.
  void cut(int a, int b) { tell("cut " + std::to_string(a) + " " + std::to_string(b)); }
  /// Everything passes again, at once.
  void heal() { tell("heal"); }

private:
  std::string space(int host) const;
  std::string hub() const;
  void tell(const std::string& command);

  scratch directory_;
  int hosts_;
  std::unique_ptr<child_process> wire_;
};

} // namespace millrace::testing
