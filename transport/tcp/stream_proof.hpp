// How a bulk stream proves to which channel it belongs: three messages, and a key of the channel.
// Pure functions on bytes; used by `stream_admission` and `stream_opening`.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/channel/channel.hpp>

#include <array>
#include <cstdint>
#include <span>

namespace millrace::transport::tcp {

/// Names the streams towards one process on one channel. The side that accepts sends it over the
/// channel.
using group_id = std::array<std::uint8_t, 16>;

/// What the first message says, from the side that connects.
struct stream_claim {
  std::uint16_t slot = 0;   // the place among the group's streams
  std::uint64_t serial = 0; // the number of this connection, never used twice in a group
  group_id group{};
  std::array<std::uint8_t, 32> nonce{};

  friend bool operator==(const stream_claim&, const stream_claim&) = default;
};

using claim_message = std::array<std::byte, 64>;
using stream_challenge = std::array<std::byte, 32>; // fresh for each connection
using stream_proof = std::array<std::byte, 32>;

claim_message encode_claim(const stream_claim& a);
/// Decodes the first message.
/// Errors:  `protocol_error`, `unsupported_version`.
result<stream_claim> decode_claim(std::span<const std::byte, 64> bytes);

/// Returns the key of a group's proofs, which follows from its channel.
net::channel_key proof_key(const net::channel& c, const group_id& group);

/// Return the connecting side's answer to the challenge, and the accepting side's last message.
/// They cover all bytes sent before. They cannot be made without the key, and they fit no other
/// connection.
stream_proof prove_connector(
  const net::channel_key& key, const claim_message& first, const stream_challenge& challenge);
stream_proof prove_acceptor(
  const net::channel_key& key, const claim_message& first, const stream_challenge& challenge);
/// Returns the secret of the stream itself.
net::channel_key stream_key(
  const net::channel_key& key, const claim_message& first, const stream_challenge& challenge);

bool equal(const stream_proof& a, const stream_proof& b) noexcept;

} // namespace millrace::transport::tcp
