// Opens a listener on a network.
// Called by `listener::open`.
#include <millrace/net/tls/address.hpp>
#include <millrace/net/tls/channel.hpp>
#include <millrace/net/tls/listening_sockets.hpp>
#include <millrace/net/tls/network_admission.hpp>

namespace millrace::net::tls {

result<std::shared_ptr<listener>> listen(
  const std::shared_ptr<io_loop>& loop, const listener_options& where,
  const channel_options& options, accept_function accept) {
  if (!options.tls)
    return fail(not_configured(where.address));
  auto sockets = open_listening_sockets(where.address);
  if (!sockets)
    return fail(sockets.error());
  auto exact = where;
  exact.address = sockets->address;
  return listener_of(std::make_shared<network_admission>(
    loop, std::move(exact), options, std::move(accept), std::move(sockets->fds)));
}

} // namespace millrace::net::tls
