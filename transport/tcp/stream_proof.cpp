// Encodes a stream's claim, and proves it by keyed BLAKE2b.
#include <millrace/core/assert.hpp>
#include <millrace/core/ids.hpp>
#include <millrace/transport/bytes.hpp>
#include <millrace/transport/tcp/stream_proof.hpp>

#include <sodium.h>

namespace millrace::transport::tcp {

namespace {

constexpr std::array<std::uint8_t, 4> magic{'M', 'R', 'S', 'T'};
constexpr std::uint16_t version = 1;

std::array<std::byte, 32> mac(
  const net::channel_key& key, std::string_view role, const claim_message& first,
  const stream_challenge& challenge) {
  crypto_generichash_state state;
  std::array<std::byte, 32> out{};
  auto begun = crypto_generichash_init(
    &state, reinterpret_cast<const unsigned char*>(key.data()), key.size(), out.size());
  MILLRACE_ASSERT(begun == 0);
  auto add = [&](const void* data, std::size_t size_bytes) {
    crypto_generichash_update(&state, static_cast<const unsigned char*>(data), size_bytes);
  };
  add(role.data(), role.size());
  add(first.data(), first.size());
  add(challenge.data(), challenge.size());
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(out.data()), out.size());
  return out;
}

} // namespace

claim_message encode_claim(const stream_claim& a) {
  claim_message out{};
  byte_writer w{out.data()};
  w.raw(magic.data(), magic.size());
  w.number(version);
  w.number(a.slot);
  w.number(a.serial);
  w.raw(a.group.data(), a.group.size());
  w.raw(a.nonce.data(), a.nonce.size());
  MILLRACE_ASSERT(w.at() == out.data() + out.size());
  return out;
}

result<stream_claim> decode_claim(std::span<const std::byte, 64> bytes) {
  byte_reader r{bytes.data()};
  std::array<std::uint8_t, 4> begin{};
  r.raw(begin.data(), begin.size());
  if (begin != magic)
    return fail(errc::protocol_error, "the first bytes are no stream's");
  if (auto theirs = r.number<std::uint16_t>(); theirs != version)
    return fail(
      errc::unsupported_version, "a stream of version {} where this process speaks {}", theirs,
      version);
  stream_claim a;
  a.slot = r.number<std::uint16_t>();
  a.serial = r.number<std::uint64_t>();
  r.raw(a.group.data(), a.group.size());
  r.raw(a.nonce.data(), a.nonce.size());
  return a;
}

net::channel_key proof_key(const net::channel& c, const group_id& group) {
  return c.derive_key("millrace tcp stream " + to_hex(group.data(), group.size()));
}

stream_proof prove_connector(
  const net::channel_key& key, const claim_message& first, const stream_challenge& challenge) {
  return mac(key, "connector", first, challenge);
}

stream_proof prove_acceptor(
  const net::channel_key& key, const claim_message& first, const stream_challenge& challenge) {
  return mac(key, "acceptor", first, challenge);
}

net::channel_key stream_key(
  const net::channel_key& key, const claim_message& first, const stream_challenge& challenge) {
  return mac(key, "stream", first, challenge);
}

bool equal(const stream_proof& a, const stream_proof& b) noexcept {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

} // namespace millrace::transport::tcp
