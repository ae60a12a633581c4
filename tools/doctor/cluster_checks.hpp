// Checks what a configuration needs from this host and its network.
// Called by `millrace doctor -c FILE`.
#pragma once

#include <millrace/config/settings.hpp>
#include <millrace/tools/doctor/doctor.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::tools::doctor {

/// Calls to the network. Tests replace them.
struct network_calls {
  /// Returns the numeric addresses of a host, or the reason why there are none. May take as long as
  /// the system's resolver.
  result<std::vector<std::string>> (*resolve)(const std::string& host);
  /// Returns 0 if a process could listen there now, else the error number.
  int (*listen)(const std::string& host, std::uint16_t port);

  static network_calls real();
};

/// Checks the files of `security`, the hosts of all nodes, and the ports of this host's node.
/// Changes nothing. `own_node` is empty if no node of the file is on this host.
std::vector<finding> examine_cluster(
  const config::settings& settings, const std::string& own_node, const network_calls& calls);

/// Checks whether the arenas of one node fit in the memory that this machine and the control groups
/// of this process allow.
finding check_sizes(const config::settings& node, const machine& m);

} // namespace millrace::tools::doctor
