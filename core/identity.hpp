// The key pair behind this process's identity, with which only the process itself can sign. Used by
// the handshake of channels. `this_peer()` in ids.hpp returns the identity.
#pragma once

#include <millrace/core/ids.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

/// Returns the number of this process on its host.
std::uint32_t this_process() noexcept;

/// An Ed25519 public key. The secret key never leaves the process, and a forked child makes its
/// own.
using identity_key = std::array<std::uint8_t, 32>;
using identity_signature = std::array<std::uint8_t, 64>;

/// Returns the public key of this process. It is made together with `this_peer()`.
const identity_key& this_peer_key() noexcept;

identity_signature sign_as_this_peer(std::span<const std::byte> message) noexcept;

/// Returns true if the holder of `key` signed the message.
bool is_signed_by(
  const identity_key& key, std::span<const std::byte> message,
  const identity_signature& signature) noexcept;

/// Returns the identity of a key: a hash of it, so no other key has the same one.
peer_id peer_id_of(const identity_key& key) noexcept;

} // namespace millrace
