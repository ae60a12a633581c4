// One key pair per process, and the identity derived from it. Called by the handshake of channels.
#include <millrace/core/assert.hpp>
#include <millrace/core/identity.hpp>
#include <millrace/core/process_mark.hpp>
#include <millrace/core/simulated_machine.hpp>

#include <pthread.h>
#include <sodium.h>

#include <string_view>

namespace millrace {

static_assert(std::tuple_size_v<identity_key> == crypto_sign_PUBLICKEYBYTES);
static_assert(std::tuple_size_v<identity_signature> == crypto_sign_BYTES);

namespace {

struct identity {
  peer_id id;
  identity_key key{};
  std::array<std::uint8_t, crypto_sign_SECRETKEYBYTES> secret{};

  void renew() noexcept {
    crypto_sign_keypair(key.data(), secret.data());
    id = peer_id_of(key);
  }
};

identity own;

const identity& own_identity() noexcept {
  // A forked child is another process: it must not speak in its parent's name.
  static const bool made = [] {
    if (sodium_init() < 0)
      return false;
    own.renew();
    return pthread_atfork(nullptr, nullptr, [] { own.renew(); }) == 0;
  }();
  MILLRACE_ASSERT(made);
  return own;
}

const unsigned char* chars(std::span<const std::byte> bytes) noexcept {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

} // namespace

std::uint32_t this_process() noexcept {
  return simulated() ? simulated()->this_pid() : process_mark{}.process();
}

const peer_id& this_peer() noexcept {
  return simulated() ? simulated()->this_peer() : own_identity().id;
}

const identity_key& this_peer_key() noexcept { return own_identity().key; }

identity_signature sign_as_this_peer(std::span<const std::byte> message) noexcept {
  identity_signature out{};
  crypto_sign_detached(
    out.data(), nullptr, chars(message), message.size(), own_identity().secret.data());
  return out;
}

bool is_signed_by(
  const identity_key& key, std::span<const std::byte> message,
  const identity_signature& signature) noexcept {
  return crypto_sign_verify_detached(
           signature.data(), chars(message), message.size(), key.data()) == 0;
}

peer_id peer_id_of(const identity_key& key) noexcept {
  constexpr std::string_view purpose = "millrace identity 1";
  peer_id id;
  crypto_generichash_state state;
  crypto_generichash_init(
    &state, reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size(),
    id.bytes.size());
  crypto_generichash_update(&state, key.data(), key.size());
  crypto_generichash_final(&state, id.bytes.data(), id.bytes.size());
  return id;
}

} // namespace millrace
