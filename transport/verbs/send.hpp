// Puts a message of the verbs driver on a channel. Used by a link and its two sides.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/verbs/messages.hpp>

namespace millrace::transport::verbs {

template <class Message>
[[nodiscard]] status send(net::channel& c, message_kind kind, const Message& m) {
  byte_buffer body;
  wire_writer{body}(std::string{"verbs"}, kind, m);
  return c.send(net::frame_kind::driver, 0, body);
}

/// The same for a message that the other side waits for: a channel that cannot take it is closed.
template <class Message>
void send_or_close(net::channel& c, message_kind kind, const Message& m) {
  if (auto sent = send(c, kind, m); !sent.ok() && sent.code() != errc::peer_lost)
    c.close({errc::peer_lost, "telling {} about RDMA: {}", c.peer().name, sent.to_string()});
}

} // namespace millrace::transport::verbs
