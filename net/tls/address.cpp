// Reading tls:// addresses, and the options of every TCP socket of a channel.
#include <millrace/net/tls/address.hpp>

#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cstring>

namespace millrace::net::tls {

namespace {

constexpr std::size_t host_bytes_max = 253;
constexpr int probes_max = 3;

status bad(const std::string& address, const char* why) {
  return {
    errc::invalid_argument, "address {}: expected tls://host:port or tls://[v6]:port: {}", address,
    why};
}

void set(int fd, int level, int name, int value) noexcept {
  // With the system's defaults channels are slower, but correct.
  static_cast<void>(::setsockopt(fd, level, name, &value, sizeof(value)));
}

} // namespace

std::string host_and_port::to_string() const {
  return fmt::format("{}:{}", is_v6 ? "[" + host + "]" : host, port);
}

result<host_and_port> parse_address(const std::string& address) {
  if (!address.starts_with(scheme))
    return fail(bad(address, "it has another scheme"));
  auto rest = address.substr(scheme.size());
  auto colon = rest.rfind(':');
  if (colon == std::string::npos)
    return fail(bad(address, "the port is missing"));
  host_and_port out;
  out.host = rest.substr(0, colon);
  out.is_v6 = out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']';
  if (out.is_v6)
    out.host = out.host.substr(1, out.host.size() - 2);
  else if (out.host.find(':') != std::string::npos)
    return fail(bad(address, "an IPv6 address stands in brackets"));
  auto unfit = [](unsigned char c) {
    return c <= ' ' || c == '/' || c == '@' || c == '[' || c == ']' || c == 0x7f;
  };
  if (
    out.host.empty() || out.host.size() > host_bytes_max ||
    std::any_of(out.host.begin(), out.host.end(), unfit))
    return fail(bad(address, "the host is missing or cannot be one"));
  auto port = rest.substr(colon + 1);
  if (
    port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos ||
    std::stoul(port) > 65535)
    return fail(bad(address, "the port is not a number up to 65535"));
  out.port = static_cast<std::uint16_t>(std::stoul(port));
  return out;
}

void prepare_tcp_socket(int fd, const channel_options& options) noexcept {
  auto timeout_ms = static_cast<int>(std::min<std::uint32_t>(options.peer_timeout_ms, 1u << 30));
  auto probe_s = std::max(1, timeout_ms / 1000 / probes_max);
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, probe_s);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, probe_s);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, probes_max);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_ms);
}

status not_configured(const std::string& address) {
  return {
    errc::invalid_argument,
    "address {}: nothing proves who is at the other end of a network; set `security.secret` to the "
    "file made by `millrace cluster secret`, or certificates, on every node and client",
    address};
}

} // namespace millrace::net::tls
