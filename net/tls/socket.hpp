// The socket under a TLS session, as OpenSSL sees it: no call blocks, and every write is taken
// whole. Used by `session`.
#pragma once

#include <millrace/core/codec.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <cstddef>

struct bio_st;

namespace millrace::net::tls {

/// *Problem*: when a write of OpenSSL does not fit into the socket, OpenSSL wants the same bytes
/// again. So this socket takes every record and keeps what the kernel does not take. Its user
/// writes nothing more in the meantime.
///
/// Threads: under its user's lock.
class socket {
public:
  /// The bound of bytes that wait here. Only answers that a peer provokes and does not read can
  /// reach it.
  static constexpr std::size_t unsent_bytes_max = 256 * 1024;

  explicit socket(unique_fd fd) noexcept : fd_(std::move(fd)) {}

  /// Makes the BIO for `SSL_set_bio`; null when OpenSSL has no memory. The socket must outlive it.
  bio_st* make_bio();

  int fd() const noexcept { return fd_.get(); }
  void close() noexcept { fd_ = unique_fd{}; }

  /// Allows reading again after a short read has emptied the socket.
  void look_again() noexcept { emptied_ = false; }
  /// The error of reading; 0 if there was none.
  int read_error() const noexcept { return read_error_; }
  /// The peer closed.
  bool ended() const noexcept { return ended_; }

  /// Keeps records until `write_out`, so that one system call sends several of them.
  void gather() noexcept { gathering_ = true; }
  std::size_t unsent_bytes() const noexcept { return out_.size() - out_written_; }
  /// Sends the kept bytes. 0: none are left; EAGAIN: the kernel's buffer is full; any other error
  /// is permanent.
  int write_out() noexcept;
  /// The permanent error of writing; 0 if there was none.

private:
  struct methods; // what OpenSSL calls

  unique_fd fd_;
  bool emptied_ = false;
  bool ended_ = false;
  bool gathering_ = false;
  int read_error_ = 0;
  int write_error_ = 0;
  byte_buffer out_;
  std::size_t out_written_ = 0;
};

} // namespace millrace::net::tls
