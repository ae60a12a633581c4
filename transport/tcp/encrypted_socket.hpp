// Bytes of a stream under TLS 1.3, its own key as external PSK. Used by `peer_link` where a side wants it.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/tcp/bulk_socket.hpp>

namespace millrace::transport::tcp {

/// AES-128-GCM where the processor has instructions for it, ChaCha20-Poly1305 elsewhere.
enum class bulk_cipher : std::uint8_t { aes, chacha };
bulk_cipher fast_cipher() noexcept;

/// The kernel encrypts where it can (kTLS), else OpenSSL does. The handshake goes on within `send` and `receive`; the
/// side that connects begins it with its first call of either. If either side prefers ChaCha, ChaCha it is.
/// Errors: `unsupported` where the library cannot.
result<std::unique_ptr<bulk_socket>> make_encrypted_socket(
  net::unique_fd fd, const net::channel_key& key, bool connects,
  bulk_cipher preferred = fast_cipher());

} // namespace millrace::transport::tcp
