// Opening a listener between hosts.
// Called by `listener::open`.
#include <millrace/net/channel/door_listener.hpp>
#include <millrace/net/tls/listening_sockets.hpp>
#include <millrace/net/tls/tls_address.hpp>
#include <millrace/net/tls/tls_channel.hpp>
#include <millrace/net/tls/tls_door.hpp>

namespace millrace::net {

result<std::shared_ptr<listener>> listen_tls(
  const std::shared_ptr<io_loop>& loop, const listener_options& where,
  const channel_options& options,
  std::function<std::shared_ptr<channel_handler>(const peer_info&)> accept) {
  if (!options.tls)
    return fail(tls_is_not_configured(where.address));
  auto sockets = open_listening_sockets(where.address);
  if (!sockets)
    return fail(sockets.error());
  auto exact = where;
  exact.address = sockets->address;
  auto d = std::make_shared<tls_door>(
    loop, std::move(exact), options, std::move(accept), std::move(sockets->fds));
  return std::make_shared<door_listener<tls_door>>(loop, sockets->address, std::move(d));
}

} // namespace millrace::net
