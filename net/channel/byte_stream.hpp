// The stream that a connection reads and writes: a Unix socket with descriptors, or TLS over TCP.
// Driven by `connection` and `send_queue`, which do not know which of the two it is.
#pragma once

#include <millrace/core/codec.hpp>
#include <millrace/core/status.hpp>
#include <millrace/net/loop/shared_signal.hpp>
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

/// The part of a stream that moves its bytes through memory shared with the peer, a direction at a
/// time. The socket then carries descriptors, single bytes that wake the peer, and its death.
/// Threads: as for the stream; the loop, unless it says otherwise.
class ring_port {
public:
  virtual ~ring_port() = default;

  /// Makes the memory and returns the file for the peer, or maps the peer's file. Once.
  virtual result<unique_fd> make(std::size_t ring_bytes) = 0;
  virtual status adopt(const unique_fd& file, std::size_t ring_bytes) = 0;

  /// The last frame that goes through the socket has been written, or read. Call the first one
  /// under the lock that `send` needs. `early` are descriptors that came after that frame.
  virtual void send_from_now() = 0;
  virtual void receive_from_now(std::vector<unique_fd> early) = 0;
  virtual bool sends() const noexcept = 0;
  virtual bool receives() const noexcept = 0;

  /// Reads what the socket has.
  virtual void drain_socket() = 0;
  /// Appends descriptors until `fds` has `count` of them, as far as they have arrived. Returns
  /// whether it has read the socket, and with it perhaps an event.
  virtual bool bring_fds(std::size_t count, std::vector<unique_fd>& fds) = 0;
  virtual shared_signal& arrivals() noexcept = 0;
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

  /// Returns what exchanges the bytes through shared memory. Null: this stream cannot.
  virtual ring_port* ring() noexcept { return nullptr; }

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
