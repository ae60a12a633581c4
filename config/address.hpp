// Addresses of nodes as a configuration and a command line have them. Read by the reader of settings and by tools.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::config {

inline constexpr std::size_t socket_path_bytes_max = 107; // sockaddr_un holds no more
inline constexpr std::size_t host_bytes_max = 253;        // of a name in the DNS
inline constexpr std::size_t addresses_max = 8;           // of one node

/// Where a node can be reached over a network.
struct tls_endpoint {
  std::string host; // a name, or a number; IPv6 without brackets
  std::uint16_t port = 0;

  friend bool operator==(const tls_endpoint&, const tls_endpoint&) = default;
};

/// Accepts "unix:/absolute/path" and "tls://HOST:PORT", IPv6 in brackets.
/// Errors: `invalid_argument` saying what is wrong, with what was meant where that can be guessed.
status check_address(std::string_view text);

/// Accepts a host's name, or an IPv4 or IPv6 address without brackets. Errors: `invalid_argument`.
status check_host(std::string_view text);

inline bool is_unix_address(std::string_view text) { return text.starts_with("unix:"); }
inline bool is_tls_address(std::string_view text) { return text.starts_with("tls://"); }

/// Accepts numeric addresses with a port, which may be 0: "10.1.0.2:0", "[::1]:7711". Errors: `invalid_argument`.
status check_endpoint(std::string_view text);

/// Errors: as `check_address`.
result<tls_endpoint> parse_tls_address(std::string_view text);

/// "tls://host:7710", "tls://[::1]:7710".
std::string to_address(const tls_endpoint& where);

/// True for 0.0.0.0 and ::, on which one listens and to which nobody connects.
bool is_any_host(std::string_view host);

} // namespace millrace::config
