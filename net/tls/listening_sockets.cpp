// Listening at every address of a name with one port.
#include <millrace/core/log.hpp>
#include <millrace/net/socket/acceptor.hpp>
#include <millrace/net/socket/resolver.hpp>
#include <millrace/net/tls/address.hpp>
#include <millrace/net/tls/listening_sockets.hpp>

namespace millrace::net::tls {

namespace {

// A port that the system chose for one address may be taken at another.
constexpr int port_attempts = 16;

// All get one port. An address that this machine does not have is left out, unless it has none of
// them.
result<listening_sockets> bind_all(
  const std::string& address, const std::vector<socket_address>& at, std::uint16_t port) {
  listening_sockets out;
  status first_error;
  for (auto& one : at) {
    auto there = one.with_port(port);
    auto fd = listen_at(there, "listening on " + address + " (" + there.to_string() + ")");
    if (!fd && fd.error().code() == errc::already_exists)
      return fail(fd.error());
    if (!fd) {
      first_error = first_error.ok() ? fd.error() : first_error;
      continue;
    }
    auto bound = bound_address(fd->get());
    if (!bound)
      return fail(bound.error());
    port = bound->port();
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
  auto where = parse_address(address);
  if (!where)
    return fail(where.error());
  auto at = look_up(where->host);
  if (!at)
    return fail(at.error().within("listening on " + address));
  for (int attempt = 1;; ++attempt) {
    auto out = bind_all(address, *at, where->port);
    if (out) {
      auto bound = bound_address(out->fds.front().get());
      if (!bound)
        return fail(bound.error());
      where->port = bound->port();
      out->address = std::string{scheme} + where->to_string();
      return out;
    }
    auto retry = where->port == 0 && out.error().code() == errc::already_exists;
    if (!retry || attempt == port_attempts)
      return out;
  }
}

} // namespace millrace::net::tls
