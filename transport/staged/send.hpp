// Puts a message of the staged driver on a channel.
// Used by both sides.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/staged/messages.hpp>

namespace millrace::transport::staged {

template <class Message>
[[nodiscard]] status send(net::channel& c, message_kind kind, const Message& m) {
  byte_buffer body;
  wire_writer{body}(std::string{"staged"}, kind, m);
  return c.send(net::frame_kind::driver, 0, body);
}

/// Sends a message for which the other side waits. A channel that cannot take it is closed.
template <class Message>
void send_or_close(net::channel& c, message_kind kind, const Message& m) {
  auto sent = send(c, kind, m);
  if (!sent.ok() && sent.code() != errc::peer_lost)
    c.close(sent.within("a staged message"));
}

} // namespace millrace::transport::staged
