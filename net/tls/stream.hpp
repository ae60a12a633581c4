// TLS 1.3 over one TCP socket, as the byte stream of a channel. One lock guards the session.
// Made by `tls::connect` and by listeners. `handshake` drives it first, then a connection uses it.
#pragma once

#include <millrace/net/channel/byte_stream.hpp>
#include <millrace/net/channel/handshake.hpp>
#include <millrace/net/tls/context.hpp>
#include <millrace/net/tls/session.hpp>

#include <memory>
#include <mutex>

namespace millrace::net::tls {

class stream final : public byte_stream {
public:
  /// Errors: `internal` when OpenSSL has no memory.
  static result<std::unique_ptr<stream>> make(
    std::shared_ptr<const context> context, handshake_side side, unique_fd fd);
  ~stream() override;

  /// Continues the handshake as far as the socket allows. True when it has ended and all of it is
  /// written.
  /// Errors: `permission_denied` (the secrets differ, a certificate is invalid), `protocol_error`,
  /// `peer_lost`.
  result<bool> shake_hands();

  int fd() const noexcept override;
  void close() noexcept override;
  io_outcome receive(std::span<std::byte> room, std::vector<unique_fd>& fds) override;
  bool has_unread() const override;
  io_outcome send(std::span<const iovec> parts, std::span<const int> fds) override;
  bool has_unsent() const override;
  io_outcome flush() override;
  bool carries_fds() const noexcept override { return false; }
  status explain(int error_number) const override;
  byte_buffer binding() const override;
  std::optional<std::array<std::byte, 32>> export_key(std::string_view label) const override;
  status vouch_for(const std::string& name) const override;

private:
  stream(std::shared_ptr<const context> context, handshake_side side, unique_fd fd);

  void fault(int outcome);
  status check_peer() const;
  std::array<std::byte, 32> keying_material(
    std::string_view label, std::span<const std::byte> context) const;

  const std::shared_ptr<const context> context_;
  const handshake_side side_;

  mutable std::mutex mutex_; // guards the members below
  session session_;
  bool established_ = false;
  bool dry_ = false; // the last read ended because nothing more had arrived
  status failure_;   // what broke the session
};

} // namespace millrace::net::tls
