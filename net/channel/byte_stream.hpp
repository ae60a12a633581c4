// What a connection writes to and reads from: a Unix socket with descriptors, or TLS over TCP.
// Driven by `connection` and `send_queue`, which know nothing of either.
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

/// What one read or write did.
struct io_outcome {
  std::size_t size_bytes = 0;
  int error_number = 0;  // 0 on success; EAGAIN when the socket is not ready
  bool fds_lost = false; // more descriptors came than there was room for
};

/// A stream that is ready for bytes: whatever it negotiates itself is over.
/// Threads: any; nothing blocks.
class byte_stream {
public:
  virtual ~byte_stream() = default;

  /// For waiting on; -1 once closed.
  virtual int fd() const noexcept = 0;
  virtual void close() noexcept = 0;

  /// Reads until `room` is full or nothing more has come; appends the descriptors that came along.
  /// 0 bytes without error is the end.
  virtual io_outcome receive(std::span<std::byte> room, std::vector<unique_fd>& fds) = 0;
  /// True while there is something to `receive` of which the socket itself says nothing.
  virtual bool has_unread() const = 0;

  /// Takes as many bytes as it can, in order; `fds` travel with the first.
  virtual io_outcome send(std::span<const iovec> parts, std::span<const int> fds) = 0;
  /// True while bytes that were taken wait for the socket: `flush` once it is writable.
  virtual bool has_unsent() const = 0;
  virtual io_outcome flush() = 0;
  virtual bool carries_fds() const noexcept = 0;

  /// What an `error_number` of this stream means for its user.
  virtual status explain(int error_number) const = 0;

  /// A value that both ends share and no other stream has; empty where the kernel connects both.
  virtual byte_buffer binding() const = 0;
  /// A secret of both ends for a label; nothing where the stream has none of its own.
  virtual std::optional<std::array<std::byte, 32>> export_key(std::string_view label) const = 0;
  /// Whether the peer may bear the name that it announced, as far as the stream can tell.
  virtual status vouch_for(const std::string& name) const = 0;
};

} // namespace millrace::net
