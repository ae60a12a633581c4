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
/// Errors: `invalid_argument` saying what is wrong.
result<host_and_port> parse_address(const std::string& address);

/// Small frames leave at once, and an end that nobody answers for is noticed.
void prepare_tcp_socket(int fd, const channel_options& options) noexcept;

/// The refusal of a tls:// address where nothing proves who is at the other end.
status not_configured(const std::string& address);

} // namespace millrace::net::tls
