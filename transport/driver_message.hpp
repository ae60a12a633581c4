// The messages of a driver on the channel to the same driver in the peer. Used by every driver that
// has such messages.
#pragma once

#include <millrace/core/codec.hpp>
#include <millrace/net/channel/channel.hpp>

#include <span>
#include <string>

namespace millrace::transport {

/// Returns the body of a frame of kind `driver`: the driver's name, the kind of the message, and
/// the message. `driver_of(kind)` is declared beside the kinds and returns the name.
template <class Kind, class Message>
byte_buffer driver_message(Kind kind, const Message& m) {
  byte_buffer body;
  wire_writer{body}(std::string{driver_of(kind)}, kind, m);
  return body;
}

template <class Kind, class Message>
[[nodiscard]] status send(
  net::channel& c, Kind kind, const Message& m, std::span<const int> fds = {}) {
  return c.send(net::frame_kind::driver, 0, driver_message(kind, m), fds);
}

/// Sends a message for which the other side waits. Closes the channel if it cannot take the
/// message.
template <class Kind, class Message>
void send_or_close(net::channel& c, Kind kind, const Message& m) {
  auto sent = send(c, kind, m);
  if (!sent.ok() && sent.code() != errc::peer_lost)
    c.close(sent.within("a message of the driver " + std::string{driver_of(kind)}));
}

/// Reads the kind of a message and calls `take(kind, reader)`, which reads the rest and returns a
/// status.
/// Errors:  what `take` returned; `protocol_error` when the bytes are no message.
template <class Kind, class Take>
[[nodiscard]] status take_message(std::span<const std::byte> body, Take take) {
  wire_reader reader{body};
  Kind kind{};
  reader(kind);
  status bad = take(kind, reader);
  return bad.ok() && !reader.ok() ? status{errc::protocol_error, reader.fault()} : bad;
}

} // namespace millrace::transport
