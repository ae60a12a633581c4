// Channels over TCP: the parts of `net::connect` and `listener::open` for tls:// addresses.
// Called by those two only.
#pragma once

#include <millrace/net/channel/channel.hpp>

#include <memory>
#include <string>

namespace millrace::net::tls {

void connect(
  const std::shared_ptr<io_loop>& loop, const std::string& address, const channel_options& options,
  std::shared_ptr<channel_handler> handler, completion<std::shared_ptr<channel>> done);

result<std::shared_ptr<listener>> listen(
  const std::shared_ptr<io_loop>& loop, const listener_options& where,
  const channel_options& options, accept_function accept);

} // namespace millrace::net::tls
