// Numeric addresses of IPv4 and IPv6 sockets. Used by channels between hosts and by drivers.
#pragma once

#include <millrace/core/status.hpp>

#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace millrace::net {

class socket_address {
public:
  socket_address() = default;

  /// Reads "10.0.0.2:7710" or "[fe80::1%eth0]:7710"; no host names. Errors: `invalid_argument` with
  /// the reason.
  static result<socket_address> parse(const std::string& text);
  /// Errors: `invalid_argument` for a family that is neither IPv4 nor IPv6.
  static result<socket_address> from(const sockaddr* given, socklen_t size_bytes);

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size_bytes() const noexcept { return size_bytes_; }
  int family() const noexcept { return storage_.ss_family; }
  std::uint16_t port() const noexcept;
  socket_address with_port(std::uint16_t port) const noexcept;
  /// The address without the port, "10.0.0.2" or "fe80::1%eth0".
  std::string host() const;
  /// In the form that `parse` reads.
  std::string to_string() const;

private:
  sockaddr_storage storage_{};
  socklen_t size_bytes_ = 0;
};

/// The IPv4 address behind an IPv4-mapped IPv6 one, which IPv6 sockets report; any other address as
/// it is.
socket_address without_mapping(const socket_address& address);

bool operator==(const socket_address& a, const socket_address& b) noexcept;

} // namespace millrace::net
