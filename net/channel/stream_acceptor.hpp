// Takes over connections of a listener that carry bulk data instead of a channel.
// Implemented by drivers; called by listeners on networks.
#pragma once

#include <millrace/net/socket/socket_address.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <cstddef>

namespace millrace::net {

class stream_acceptor {
public:
  /// The proof of a stream begins with this byte, and no other protocol of a listener does.
  static constexpr std::byte first_byte{'M'};

  virtual ~stream_acceptor() = default;
  /// Takes an accepted, non-blocking socket whose first bytes are a stream proof. On the loop.
  virtual void receive(unique_fd fd, const socket_address& from) = 0;
};

} // namespace millrace::net
