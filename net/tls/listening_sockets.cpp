// Binding: IPv4, IPv6, both, and names with several addresses.
#include <millrace/core/log.hpp>
#include <millrace/net/socket/resolver.hpp>
#include <millrace/net/tls/listening_sockets.hpp>
#include <millrace/net/tls/tls_address.hpp>

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

namespace millrace::net {

namespace {

constexpr int backlog = 1024;
// A port that the system chose for one address may be taken at another.
constexpr int port_attempts = 16;

bool is_any_v6(const socket_address& a) { return a.family() == AF_INET6 && a.host() == "::"; }

status refusal(int error_number, const std::string& address, const socket_address& at) {
  auto doing = "listening on " + address + " (" + at.to_string() + ")";
  if (error_number == EADDRINUSE)
    return {errc::already_exists, doing + ": another process has this port"};
  if (error_number == EADDRNOTAVAIL)
    return {errc::unavailable, doing + ": this machine does not have that address"};
  return status_from_errno(error_number, doing);
}

result<unique_fd> bind_one(const std::string& address, const socket_address& at) {
  unique_fd fd{::socket(at.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  int on = 1, only_v6 = is_any_v6(at) ? 0 : 1;
  auto made = fd && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
    (at.family() != AF_INET6 ||
     ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof(only_v6)) == 0) &&
    ::bind(fd.get(), at.get(), at.size_bytes()) == 0 && ::listen(fd.get(), backlog) == 0;
  if (!made)
    return fail(refusal(errno, address, at));
  return fd;
}

result<std::uint16_t> port_of(int fd) {
  sockaddr_storage found{};
  socklen_t size = sizeof(found);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&found), &size) != 0)
    return fail(status_from_errno(errno, "asking for a socket's port"));
  auto at = socket_address::from(reinterpret_cast<sockaddr*>(&found), size);
  return at ? result<std::uint16_t>{at->port()} : fail(at.error());
}

// All with one port. An address of the name that is not this machine's is left out, unless all are.
result<listening_sockets> bind_all(
  const std::string& address, const std::vector<socket_address>& at, std::uint16_t port) {
  listening_sockets out;
  status first_error;
  for (auto& one : at) {
    auto fd = bind_one(address, one.with_port(port));
    if (!fd && fd.error().code() == errc::already_exists)
      return fail(fd.error());
    if (!fd) {
      first_error = first_error.ok() ? fd.error() : first_error;
      continue;
    }
    auto chosen = port_of(fd->get());
    if (!chosen)
      return fail(chosen.error());
    port = *chosen;
    out.fds.push_back(std::move(*fd));
  }
  if (out.fds.empty())
    return fail(first_error);
  if (!first_error.ok())
    log().warn("not listening everywhere: {}", first_error.to_string());
  return out;
}

} // namespace

result<listening_sockets> open_listening_sockets(const std::string& address) {
  auto where = parse_tls_address(address);
  if (!where)
    return fail(where.error());
  auto at = look_up(where->host);
  if (!at)
    return fail(at.error().within("listening on " + address));
  for (int attempt = 1;; ++attempt) {
    auto out = bind_all(address, *at, where->port);
    if (out) {
      auto port = port_of(out->fds.front().get());
      if (!port)
        return fail(port.error());
      where->port = *port;
      out->address = std::string{tls_scheme} + where->to_string();
      return out;
    }
    auto retry = where->port == 0 && out.error().code() == errc::already_exists;
    if (!retry || attempt == port_attempts)
      return out;
  }
}

} // namespace millrace::net
