// The key behind this process's identity: only the process itself can sign in its name.
// Used by the handshake of channels; `this_peer()` in ids.hpp is the identity.
#pragma once

#include <millrace/core/ids.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

/// Ed25519. The secret half never leaves the process, and a forked child makes its own.
using identity_key = std::array<std::uint8_t, 32>;
using identity_signature = std::array<std::uint8_t, 64>;

/// The public key of this process, made with `this_peer()`.
const identity_key& this_peer_key() noexcept;

identity_signature sign_as_this_peer(std::span<const std::byte> message) noexcept;

/// True if the holder of `key` signed the message.
bool is_signed_by(
  const identity_key& key, std::span<const std::byte> message,
  const identity_signature& signature) noexcept;

/// The identity that belongs to a key, and to no other: a hash of it.
peer_id peer_id_of(const identity_key& key) noexcept;

} // namespace millrace
