// The TCP sockets of a listener: one for each address of its host's name, all with one port.
// Opened by `tls::listen`.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <string>
#include <vector>

namespace millrace::net::tls {

struct listening_sockets {
  std::vector<unique_fd> fds;
  std::string address; // tls://host:port, with the port that was chosen
};

/// Errors: `invalid_argument` for an invalid address; `unavailable` for an unknown name;
/// `already_exists` when the port is taken.
result<listening_sockets> open_listening_sockets(const std::string& address);

} // namespace millrace::net::tls
