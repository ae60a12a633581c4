// What a configuration asks of this host and its network. Asked by `millrace doctor -c FILE`.
#pragma once

#include <millrace/config/settings.hpp>
#include <millrace/tools/doctor/doctor.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::tools::doctor {

/// Questions to the network. Tests put others in their place.
struct network_calls {
  /// Numeric addresses of a host; fails with why there are none. May take as long as the system's resolver does.
  result<std::vector<std::string>> (*resolve)(const std::string& host);
  /// 0 if one could listen there now, or the error number.
  int (*listen)(const std::string& host, std::uint16_t port);

  static network_calls real();
};

/// The files of `security`, the hosts of all nodes, and the ports of this host's node. Changes nothing. `own_node` is
/// empty where no node of the file is on this host.
std::vector<finding> examine_cluster(
  const config::settings& settings, const std::string& own_node, const network_calls& calls);

} // namespace millrace::tools::doctor
