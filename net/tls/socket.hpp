// The socket under a TLS session as OpenSSL sees it: nothing waits, and whatever is written is taken.
// Used by the TLS streams of channels and of bulk.
#pragma once

#include <millrace/core/codec.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <cstddef>

struct bio_st;

namespace millrace::net::tls {

/// *Problem*: what was given to OpenSSL once and did not fit into the socket must be given again, the same bytes. So
/// the socket takes every record; what the kernel does not take is kept here, and its user gives no more meanwhile.
///
/// Threads: under its user's lock.
class socket {
public:
  /// What its user lets wait here: only answers that the peer provokes and does not read can pile up to this.
  static constexpr std::size_t unsent_bytes_max = 256 * 1024;

  explicit socket(unique_fd fd) noexcept : fd_(std::move(fd)) {}

  /// For `SSL_set_bio`; null when OpenSSL has no memory. The socket must outlive it.
  bio_st* make_bio();

  int fd() const noexcept { return fd_.get(); }
  void close() noexcept { fd_ = unique_fd{}; }

  /// Reading goes on, although a short read has emptied the socket before.
  void look_again() noexcept { emptied_ = false; }
  /// Why reading failed; 0 if it did not.
  int read_error() const noexcept { return read_error_; }
  /// The peer closed.
  bool ended() const noexcept { return ended_; }

  /// Records are kept until `write_out`, so that several of them leave in one call.
  void gather() noexcept { gathering_ = true; }
  std::size_t unsent_bytes() const noexcept { return out_.size() - out_written_; }
  /// 0 when nothing is left; EAGAIN when the socket is full; else why it is broken, from then on.
  int write_out() noexcept;
  /// Why the socket is broken for writing; 0 if it is not.
  int write_error() const noexcept { return write_error_; }

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
