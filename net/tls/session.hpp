// One session of OpenSSL over one socket: handshake, and bytes in whole records.
// Used by the streams of channels (stream.hpp) and of bulk data.
#pragma once

#include <millrace/net/tls/socket.hpp>

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>

struct ssl_st;
struct ssl_ctx_st;

namespace millrace::net::tls {

/// Functions that return an `int` return 1 on success, otherwise the result of OpenSSL. Pass that
/// to `error_of` at once, on the same thread.
///
/// Threads: under its user's lock.
class session {
public:
  explicit session(unique_fd fd) noexcept : socket(std::move(fd)) {}

  /// Makes OpenSSL's object. False when OpenSSL has no memory.
  bool open(ssl_ctx_st* context, bool connects);
  /// From now on OpenSSL reads and writes through `socket`. False when OpenSSL has no memory.
  bool use_socket();
  ssl_st* native() const noexcept { return ssl_.get(); }

  int shake_hands();
  /// Decrypts until `room` is full or nothing more has arrived. Adds the number of bytes to `got`.
  int read(std::span<std::byte> room, std::size_t& got);
  /// Encrypts, some records at a time, until the kernel's buffer is full. Adds the number of bytes
  /// to `taken`. Not while bytes wait in `socket`, which also tells when the connection is broken.
  int write(std::span<const iovec> parts, std::size_t& taken);
  /// OpenSSL's `SSL_ERROR_…` for a result that is not 1.
  int error_of(int result) const;

  tls::socket socket;

private:
  struct free_ssl {
    void operator()(ssl_st* ssl) const noexcept;
  };

  std::unique_ptr<ssl_st, free_ssl> ssl_;
};

} // namespace millrace::net::tls
