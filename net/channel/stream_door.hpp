// Where a listener hands sockets that open with an admission instead of a TLS handshake.
// Implemented by the tcp driver; called by listeners between hosts.
#pragma once

#include <millrace/net/socket/socket_address.hpp>
#include <millrace/net/socket/unique_fd.hpp>

namespace millrace::net {

class stream_door {
public:
  virtual ~stream_door() = default;
  /// On the loop. Takes an accepted, non-blocking socket whose first bytes are an admission.
  virtual void receive(unique_fd fd, const socket_address& from) = 0;
};

} // namespace millrace::net
