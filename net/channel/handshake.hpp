// The first messages of a connection: hello, proof, goodbye. Pure functions on bytes.
// Used by channels on both sides, and by listeners to tell a refused process why.
#pragma once

#include <millrace/core/codec.hpp>
#include <millrace/core/identity.hpp>
#include <millrace/core/ids.hpp>
#include <millrace/core/status.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace millrace::net {

inline constexpr std::uint32_t protocol_version_min = 1;
inline constexpr std::uint32_t protocol_version_max = 2;
/// From this version on, a channel between processes of one host may use a ring, see `ring_port`.
inline constexpr std::uint32_t protocol_version_of_rings = 2;
/// The bound of frames before the end of the handshake, and of goodbyes.
inline constexpr std::uint32_t handshake_bytes_max = 4096;
inline constexpr std::size_t peer_name_bytes_max = 256;

/// Announces the sender, its versions, and what the other side may send.
struct hello {
  std::string magic = "millrace";
  std::uint32_t version_min = protocol_version_min;
  std::uint32_t version_max = protocol_version_max;
  peer_id id;
  std::string name;
  std::uint32_t requests_max = 0;
  std::uint32_t frame_bytes_max = 0;
  std::uint32_t fds_per_frame_max = 0;
  std::array<std::uint8_t, 16> nonce{};
  std::array<std::uint8_t, 16> cluster{}; // a `cluster_mark`

  friend bool operator==(const hello&, const hello&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, hello& x) {
  return f(
    x.magic, x.version_min, x.version_max, x.id, x.name, x.requests_max, x.frame_bytes_max,
    x.fds_per_frame_max, x.nonce, x.cluster);
}

/// Reads a hello and checks every field.
/// Errors: `protocol_error` naming the fault.
result<hello> decode_hello(std::span<const std::byte> bytes);

/// The highest version both sides speak.
/// Errors: `unsupported_version` naming both ranges.
result<std::uint32_t> agree(const hello& ours, const hello& theirs);

enum class handshake_side : std::uint8_t { connector = 0, acceptor = 1 };

/// The message of a side that has both hellos: its key and its signature.
struct handshake_proof {
  identity_key key{};
  identity_signature signature{};

  friend bool operator==(const handshake_proof&, const handshake_proof&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, handshake_proof& x) {
  return f(x.key, x.signature);
}

/// Makes the proof of this process, on `side`. `binding` is `byte_stream::binding`.
///
/// *Problem*: a recorded stream that is replayed on a new connection must not pass for a peer, and
/// one member of a cluster must not take the identity of another. The signature covers the fresh
/// nonces of both hellos, so a recording does not verify. The identity is a hash of the key, so no
/// other process can sign for it. The signature also covers the session underneath, so a process in
/// between cannot forward a proof.
byte_buffer prove(
  handshake_side side, std::span<const std::byte> binding,
  std::span<const std::byte> connector_hello, std::span<const std::byte> acceptor_hello);

/// Errors: `protocol_error` for bytes that hold no proof; `permission_denied` for one that does not
/// belong to `claimed`, or to this connection.
status check_proof(
  std::span<const std::byte> received, const peer_id& claimed, handshake_side side,
  std::span<const std::byte> binding, std::span<const std::byte> connector_hello,
  std::span<const std::byte> acceptor_hello);

/// Derives 32 bytes from both hellos and the label.
std::array<std::byte, 32> derive(
  std::string_view label, std::span<const std::byte> connector_hello,
  std::span<const std::byte> acceptor_hello);

/// Encodes why a side closes. The detail is cut to fit.
byte_buffer encode_goodbye(const status& why);
/// Decodes the reason; `protocol_error` for bytes that hold none.
status decode_goodbye(std::span<const std::byte> bytes);

} // namespace millrace::net
