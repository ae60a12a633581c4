// Takes over connections of a listener that carry bulk data instead of a channel.
// Implemented by the tcp driver; called by listeners on networks.
#pragma once

#include <millrace/net/socket/socket_address.hpp>
#include <millrace/net/socket/unique_fd.hpp>

namespace millrace::net {

class stream_acceptor {
public:
  virtual ~stream_acceptor() = default;
  /// Takes an accepted, non-blocking socket whose first bytes are an admission. On the loop.
  virtual void receive(unique_fd fd, const socket_address& from) = 0;
};

} // namespace millrace::net
