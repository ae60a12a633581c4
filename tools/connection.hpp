// How a command finds the service it talks to: by a configuration, by address, or at the default one.
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

/// A client of every node of the file, or of the cluster of the node at the address; then the file says only how to
/// connect.
/// Fails with `exit_usage` when the configuration or an option is wrong.
tl::expected<client, failure> connect_to(const connection_options& options);

} // namespace millrace::tools
