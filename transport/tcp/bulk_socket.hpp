// The socket of one bulk stream: its bytes go as they are, or encrypted.
// Used by `stream`, which alone knows what they mean.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>

namespace millrace::transport::tcp {

/// What one system call did.
struct moved_bytes {
  std::size_t size_bytes = 0; // received nothing and no error: the other end has closed
  int error_number = 0;       // EAGAIN: nothing can be moved now
  bool drained = false;       // received all there was: the next event says when there is more
};

/// Kept apart from `net::byte_stream`, which serves channels: that one carries descriptors, proves who the peer is and
/// keeps what the socket does not take; this one gathers, tells when the socket is drained, and lets one thread send
/// while another receives, without a lock where nothing is encrypted. What encryption needs they share
/// (`net::tls::session`).
///
/// Neither call blocks. Threads: one sends while another receives; no more than that.
class bulk_socket {
public:
  virtual ~bulk_socket() = default;

  virtual int fd() const noexcept = 0;
  /// `more`: other bytes follow at once.
  virtual moved_bytes send(std::span<const iovec> parts, bool more) noexcept = 0;
  virtual moved_bytes receive(std::span<const iovec> parts) noexcept = 0;
  /// Passes on what `send` has taken and keeps; 0 once there is nothing left, EAGAIN: later.
  virtual int flush() noexcept { return 0; }
  /// Both directions end; the descriptor stays until the object goes.
  virtual void shut() noexcept = 0;
};

/// One system call that does not wait: what `send` of a stream is whose bytes go to the socket as they are.
moved_bytes send_some(int fd, std::span<const iovec> parts, bool more) noexcept;

std::unique_ptr<bulk_socket> make_plain_socket(net::unique_fd fd);

} // namespace millrace::transport::tcp
