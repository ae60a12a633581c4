// Puts a message of the staged driver on a channel. Used by both sides.
#pragma once

#include <millrace/transport/channel.hpp>
#include <millrace/transport/staged/messages.hpp>

namespace millrace::transport::staged {

template <class Message>
[[nodiscard]] status send(channel& c, message_kind kind, const Message& m) {
  byte_buffer body;
  wire_writer{body}(std::string{"staged"}, kind, m);
  return c.send(frame_kind::driver, 0, body);
}

} // namespace millrace::transport::staged
