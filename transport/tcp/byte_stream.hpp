// Moves the bytes of one stream into its socket and out of it, either plain or encrypted.
// Used by `stream`, which knows what the bytes mean.
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
  std::size_t size_bytes = 0; // 0 from `receive` without an error: the other end has closed
  int error_number = 0;       // EAGAIN: no bytes can be moved now
  bool drained = false;       // received everything there was: an event will report more
};

/// A socket's bytes. No call blocks.
/// Threads: one thread may send while another one receives; no more than that.
class byte_stream {
public:
  virtual ~byte_stream() = default;

  virtual int fd() const noexcept = 0;
  /// `more`: other bytes follow at once.
  virtual moved_bytes send(std::span<const iovec> parts, bool more) noexcept = 0;
  virtual moved_bytes receive(std::span<const iovec> parts) noexcept = 0;
  /// Sends the bytes that `send` has taken and kept. Returns 0 when none are left, EAGAIN when it
  /// must be called again later.
  virtual int flush() noexcept { return 0; }
  /// Ends both directions. The descriptor stays open until the object goes.
  virtual void shut() noexcept = 0;
};

/// Makes one system call that does not wait. A stream with plain bytes sends this way.
moved_bytes send_some(int fd, std::span<const iovec> parts, bool more) noexcept;

std::unique_ptr<byte_stream> make_plain_stream(net::unique_fd fd);

} // namespace millrace::transport::tcp
