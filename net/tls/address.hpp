// Addresses of the form tls://host:port, and the options of the sockets behind them.
// Used by the connecting side and by listeners.
#pragma once

#include <millrace/net/channel/channel.hpp>

#include <cstdint>
#include <string>

namespace millrace::net::tls {

inline constexpr std::string_view scheme = "tls://";

struct host_and_port {
  std::string host; // a name, or a numeric address without brackets
  std::uint16_t port = 0;
  bool is_v6 = false; // was in brackets

  /// "host:port" or "[host]:port".
  std::string to_string() const;
};

/// Reads "tls://host:port" or "tls://[v6]:port".
/// Errors: `invalid_argument` with the reason.
result<host_and_port> parse_address(const std::string& address);

/// Sets the socket to send small frames at once, and to notice when the other host is gone.
void prepare_tcp_socket(int fd, const channel_options& options) noexcept;

/// The error for a tls:// address when neither a secret nor certificates are configured.
status not_configured(const std::string& address);

} // namespace millrace::net::tls
