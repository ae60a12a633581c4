// The stream that a connection reads and writes: a Unix socket with descriptors, or TLS over TCP.
// Driven by `connection` and `send_queue`, which do not know which of the two it is.
#pragma once

#include <millrace/core/codec.hpp>
#include <millrace/core/status.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::net {

/// The outcome of one read or write.
struct io_outcome {
  std::size_t size_bytes = 0;
  int error_number = 0;  // 0 on success; EAGAIN when the socket is not ready
  bool fds_lost = false; // more descriptors came than there was room for
};

/// A stream that is ready for bytes: its own handshake is over.
/// Threads: any; nothing blocks.
class byte_stream {
public:
  virtual ~byte_stream() = default;

  /// The descriptor to wait on; -1 once closed.
  virtual int fd() const noexcept = 0;
  virtual void close() noexcept = 0;

  /// Reads until `room` is full or nothing more has arrived. Appends the descriptors that arrived
  /// with the bytes. 0 bytes without an error mean the end of the stream.
  virtual io_outcome receive(std::span<std::byte> room, std::vector<unique_fd>& fds) = 0;
  /// True while the stream holds bytes to `receive` that polling the socket does not show.
  virtual bool has_unread() const = 0;

  /// Takes as many bytes as it can, in order. `fds` travel with the first byte.
  virtual io_outcome send(std::span<const iovec> parts, std::span<const int> fds) = 0;
  /// True while the stream holds bytes that the socket did not take. Call `flush` when the socket
  /// is writable.
  virtual bool has_unsent() const = 0;
  virtual io_outcome flush() = 0;
  virtual bool carries_fds() const noexcept = 0;

  /// Explains an `error_number` of this stream.
  virtual status explain(int error_number) const = 0;

  /// A value that both ends of this stream share and no other stream has. Empty for Unix sockets.
  virtual byte_buffer binding() const = 0;
  /// Derives a secret that both ends share, for a label. Empty when the stream has no keys of its
  /// own.
  virtual std::optional<std::array<std::byte, 32>> export_key(std::string_view label) const = 0;
  /// Checks that the peer may use the name it announced, as far as the stream can tell.
  virtual status vouch_for(const std::string& name) const = 0;
};

} // namespace millrace::net
