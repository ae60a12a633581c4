// Finds the service for a command: by a configuration, by an address, or at the default address.
// Used by every command that talks to a service.
#pragma once

#include <millrace/runtime/client/client.hpp>
#include <millrace/tools/command.hpp>

#include <string>

namespace millrace::tools {

struct connection_options {
  std::string config_file;
  std::string address;
  std::string secret;
  std::string timeout;
  std::string group = "default";
};

/// Adds -c, --address, --secret and --timeout.
void add_connection_options(CLI::App& command, connection_options& options);
/// Adds --group.
void add_group_option(CLI::App& command, connection_options& options);

/// Returns a client of all nodes of the configuration file. With an address, it returns a client of
/// the cluster of the node there; the file then says only how to connect.
/// Errors:  fails with `exit_usage` when the configuration or an option is wrong.
tl::expected<client, failure> connect_to(const connection_options& options);

} // namespace millrace::tools
