// Addresses of nodes, in configurations and on command lines. Used by the reader of settings and by
// tools.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::config {

inline constexpr std::size_t socket_path_bytes_max = 107; // sockaddr_un holds no more
inline constexpr std::size_t host_bytes_max = 253;        // the bound of names in the DNS
inline constexpr std::size_t addresses_max = 8;           // the most that one node has

/// Where a node can be reached over a network.
struct tls_endpoint {
  std::string host; // a name, or a number; IPv6 without brackets
  std::uint16_t port = 0;

  friend bool operator==(const tls_endpoint&, const tls_endpoint&) = default;
};

/// Checks an address: "unix:/absolute/path" or "tls://HOST:PORT", with IPv6 in brackets.
/// Errors:  `invalid_argument` saying what is wrong and, where it can be guessed, what was meant.
status check_address(std::string_view text);

/// Returns the address of the service that a client without a configuration asks: the one that is
/// given, else that of MILLRACE_ADDRESS in the environment, else that of `millrace serve` without a
/// configuration.
std::string client_address(std::string_view given);

/// Checks a host: a name, or an IPv4 or IPv6 address without brackets. Errors: `invalid_argument`.
status check_host(std::string_view text);

inline bool is_unix_address(std::string_view text) { return text.starts_with("unix:"); }
inline bool is_tls_address(std::string_view text) { return text.starts_with("tls://"); }

/// Checks a numeric address with a port, which may be 0: "10.1.0.2:0", "[::1]:7711".
/// Errors:  `invalid_argument`.
status check_endpoint(std::string_view text);

/// Reads "tls://HOST:PORT". Errors: as `check_address`.
result<tls_endpoint> parse_tls_address(std::string_view text);

/// Returns "tls://host:7710" or "tls://[::1]:7710".
std::string to_address(const tls_endpoint& where);

/// Returns true for 0.0.0.0 and ::. A node can listen there, but a client cannot connect there.
bool is_any_host(std::string_view host);

} // namespace millrace::config
