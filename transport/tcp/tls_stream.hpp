// The bytes of a stream under TLS 1.3, with the stream's own key as external PSK.
// Used by `peer_link` where a side requires it.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/tcp/byte_stream.hpp>

namespace millrace::transport::tcp {

/// AES-128-GCM or ChaCha20-Poly1305.
enum class bulk_cipher : std::uint8_t { aes, chacha };
/// Returns AES where the processor has instructions for it, else ChaCha.
bulk_cipher fast_cipher() noexcept;

/// Makes an encrypted stream. The kernel encrypts where it can (kTLS), else OpenSSL does. The
/// handshake runs inside `send` and `receive`; the connecting side begins it with its first call of
/// either. If either side prefers ChaCha, both use it.
/// Errors:  `unsupported` where the library cannot do this.
result<std::unique_ptr<byte_stream>> make_tls_stream(
  net::unique_fd fd, const net::channel_key& key, bool connects,
  bulk_cipher preferred = fast_cipher());

} // namespace millrace::transport::tcp
