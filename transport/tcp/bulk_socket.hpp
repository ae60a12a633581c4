// The socket of one bulk stream, which sends bytes as they are or encrypted.
// Used by `stream`, which alone knows the meaning of the bytes.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>

namespace millrace::transport::tcp {

/// The outcome of one system call.
struct moved_bytes {
  std::size_t size_bytes = 0; // 0 received bytes without an error: the other end has closed
  int error_number = 0;       // EAGAIN: nothing can be moved now
  bool drained = false;       // received all there was: the next event says when there is more
};

/// A stream's socket. It is kept apart from `net::byte_stream`, which serves channels. That one
/// carries descriptors, proves who the peer is, and keeps what the socket does not take. This one
/// gathers, says when the socket is drained, and needs no lock between sending and receiving where
/// nothing is encrypted. Both share the encryption (`net::tls::session`).
///
/// No call blocks.
/// Threads: one sends while another receives, and no others.
class bulk_socket {
public:
  virtual ~bulk_socket() = default;

  virtual int fd() const noexcept = 0;
  /// Sends bytes. `more`: other bytes follow at once.
  virtual moved_bytes send(std::span<const iovec> parts, bool more) noexcept = 0;
  virtual moved_bytes receive(std::span<const iovec> parts) noexcept = 0;
  /// Sends what `send` has taken and kept. Returns 0 once nothing is left, EAGAIN if it must be
  /// called again later.
  virtual int flush() noexcept { return 0; }
  /// Ends both directions. The descriptor stays open until the object goes.
  virtual void shut() noexcept = 0;
};

/// Does one system call that does not wait. This is `send` of a stream that is not encrypted.
moved_bytes send_some(int fd, std::span<const iovec> parts, bool more) noexcept;

std::unique_ptr<bulk_socket> make_plain_socket(net::unique_fd fd);

} // namespace millrace::transport::tcp
