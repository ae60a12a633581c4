// A stream under TLS 1.3, with the stream's own key as external PSK. Used by `peer_link` if either
// side wants it.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/tcp/bulk_socket.hpp>

namespace millrace::transport::tcp {

/// AES-128-GCM if the processor has instructions for it, else ChaCha20-Poly1305.
enum class bulk_cipher : std::uint8_t { aes, chacha };
bulk_cipher fast_cipher() noexcept;

/// Makes an encrypted socket. The kernel encrypts where it can (kTLS), else OpenSSL does. The
/// handshake takes place within `send` and `receive`; the side that connects begins it with its
/// first call of either. If either side prefers ChaCha, both use it.
/// Errors:  `unsupported` where the library cannot.
result<std::unique_ptr<bulk_socket>> make_encrypted_socket(
  net::unique_fd fd, const net::channel_key& key, bool connects,
  bulk_cipher preferred = fast_cipher());

} // namespace millrace::transport::tcp
