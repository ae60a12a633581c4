// Moves the frames of a connection from its socket to a ring.
//
// Three frames do it: the connector offers memory, the acceptor takes it, the connector begins. The
// last two are each the last one that their sender writes to the socket. An acceptor that wants no
// ring says nothing, and all frames stay in the socket.
#include <millrace/core/assert.hpp>
#include <millrace/core/log.hpp>
#include <millrace/net/channel/connection.hpp>

#include <array>
#include <cerrno>

namespace millrace::net {

// Returns the ring from which this side reads; null while it reads the socket.
ring_port* connection::reading_ring() const {
  auto* ring = stream_->ring();
  return ring && ring->receives() ? ring : nullptr;
}

void connection::offer_ring() {
  auto* ring = stream_->ring();
  auto wanted = ring && is_connector() && options_.ring_bytes > 0;
  if (!wanted || peer_.protocol < protocol_version_of_rings || peer_fds_max_ == 0)
    return;
  auto file = ring->make(options_.ring_bytes);
  if (!file)
    return log().debug(
      "no ring for the channel to {}: {}", describe_peer(), file.error().to_string());
  std::lock_guard guard{send_mutex_};
  ring_known_ = transmit(frame_kind::ring, 0, {}, std::array{file->get()}, true).ok();
}

status connection::take_ring(std::vector<unique_fd> fds) {
  auto* ring = stream_->ring();
  auto is_offer = !fds.empty();
  auto in_turn = is_offer ? !is_connector() && !ring_known_ : ring_known_;
  if (!ring || ring->receives() || !in_turn || fds.size() > 1)
    return status{errc::protocol_error, "a frame about a ring, out of turn"};
  if (is_offer) {
    if (options_.ring_bytes == 0)
      return {};
    auto adopted = ring->adopt(fds.front(), options_.ring_bytes);
    if (adopted.code() == errc::protocol_error)
      return adopted;
    ring_known_ = adopted.ok();
    if (!adopted.ok())
      log().debug("no ring for the channel to {}: {}", describe_peer(), adopted.to_string());
  } else {
    ring->receive_from_now(std::exchange(received_fds_, {}));
    parser_.drop_rest();
    event_read_ = true;
  }
  if (ring_known_ && is_offer != is_connector()) {
    std::lock_guard guard{send_mutex_};
    ring_due_ = true;
    switch_to_ring();
  }
  return {};
}

void connection::switch_to_ring() {
  if (!ring_due_ || !queue_.empty() || queue_.broken())
    return;
  auto head = encode_header({.kind = frame_kind::ring});
  iovec part{head.data(), head.size()};
  auto sent = stream_->send({&part, 1}, {});
  // A Unix socket takes so few bytes whole, or not at all.
  MILLRACE_ASSERT(sent.size_bytes == 0 || sent.size_bytes == head.size());
  ring_due_ = sent.size_bytes == 0;
  if (!ring_due_)
    stream_->ring()->send_from_now();
  else if (sent.error_number == EAGAIN)
    arm_writing();
}

} // namespace millrace::net
