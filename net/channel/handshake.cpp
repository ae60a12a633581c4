// Encoding and checking of hello, proof and goodbye.
// Used by channels on both sides.
#include <millrace/core/tensor.hpp>
#include <millrace/net/channel/handshake.hpp>

#include <fmt/core.h>
#include <sodium.h>

namespace millrace::net {

namespace {

constexpr decode_limits limits{2, handshake_bytes_max};
constexpr std::uint32_t frame_bytes_least = handshake_bytes_max;
constexpr std::size_t goodbye_detail_bytes_max = 1024;

std::string range_of(const hello& h) {
  return fmt::format("{} to {}", h.version_min, h.version_max);
}

// Cuts behind a whole character.
std::string shortened(std::string text, std::size_t size_bytes_max) {
  if (text.size() <= size_bytes_max)
    return text;
  text.resize(size_bytes_max);
  while (!text.empty() && !is_utf8(text))
    text.pop_back();
  return text;
}

void absorb(crypto_generichash_state& state, std::span<const std::byte> bytes) {
  std::uint64_t size = bytes.size();
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&size), sizeof(size));
  crypto_generichash_update(
    &state, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::array<std::byte, 32> hash_of(
  std::string_view purpose, std::initializer_list<std::span<const std::byte>> parts) {
  std::array<std::byte, 32> out{};
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, out.size());
  absorb(state, std::as_bytes(std::span{purpose}));
  for (auto part : parts)
    absorb(state, part);
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(out.data()), out.size());
  return out;
}

// What a side signs.
std::array<std::byte, 32> transcript(
  handshake_side side, std::span<const std::byte> binding,
  std::span<const std::byte> connector_hello, std::span<const std::byte> acceptor_hello) {
  auto role = static_cast<std::byte>(side);
  return hash_of(
    "millrace channel proof 2", {{&role, 1}, binding, connector_hello, acceptor_hello});
}

} // namespace

result<hello> decode_hello(std::span<const std::byte> bytes) {
  auto h = decode<hello>(bytes, "hello", limits);
  if (!h)
    return h;
  if (h->magic != hello{}.magic)
    return fail(errc::protocol_error, "hello: not of this protocol");
  if (h->version_min == 0 || h->version_min > h->version_max)
    return fail(errc::protocol_error, "hello: an empty range of versions");
  if (h->id.is_nil())
    return fail(errc::protocol_error, "hello: a peer without identity");
  if (h->name.empty() || h->name.size() > peer_name_bytes_max || !is_utf8(h->name))
    return fail(errc::protocol_error, "hello: a name that is not 1 to 256 bytes of UTF-8");
  if (h->frame_bytes_max < frame_bytes_least)
    return fail(errc::protocol_error, "hello: a frame bound below that of the handshake");
  return h;
}

result<std::uint32_t> agree(const hello& ours, const hello& theirs) {
  auto highest = std::min(ours.version_max, theirs.version_max);
  if (highest < std::max(ours.version_min, theirs.version_min))
    return fail(
      errc::unsupported_version,
      "{} speaks protocol versions {}, {} speaks {}; bring both to the same release", ours.name,
      range_of(ours), theirs.name, range_of(theirs));
  return highest;
}

byte_buffer prove(
  handshake_side side, std::span<const std::byte> binding,
  std::span<const std::byte> connector_hello, std::span<const std::byte> acceptor_hello) {
  return encode(handshake_proof{
    this_peer_key(),
    sign_as_this_peer(transcript(side, binding, connector_hello, acceptor_hello))});
}

status check_proof(
  std::span<const std::byte> received, const peer_id& claimed, handshake_side side,
  std::span<const std::byte> binding, std::span<const std::byte> connector_hello,
  std::span<const std::byte> acceptor_hello) {
  auto proof = decode<handshake_proof>(received, "proof", limits);
  if (!proof)
    return proof.error();
  if (peer_id_of(proof->key) != claimed)
    return status{errc::permission_denied, "the peer claims the identity of another process"};
  auto signed_bytes = transcript(side, binding, connector_hello, acceptor_hello);
  if (!is_signed_by(proof->key, signed_bytes, proof->signature))
    return status{errc::permission_denied, "the proof does not match this connection"};
  return {};
}

std::array<std::byte, 32> derive(
  std::string_view label, std::span<const std::byte> connector_hello,
  std::span<const std::byte> acceptor_hello) {
  return hash_of(
    "millrace channel key 1", {std::as_bytes(std::span{label}), connector_hello, acceptor_hello});
}

byte_buffer encode_goodbye(const status& why) {
  byte_buffer out;
  wire_writer{out}(
    static_cast<std::uint8_t>(why.code()), shortened(why.detail(), goodbye_detail_bytes_max));
  return out;
}

status decode_goodbye(std::span<const std::byte> bytes) {
  std::uint8_t code = 0;
  std::string detail;
  wire_reader reader{bytes, limits};
  if (!reader(code, detail) || !is_utf8(detail))
    return status{errc::protocol_error, "a goodbye that cannot be read"};
  return status{errc_from_wire(code), std::move(detail)};
}

} // namespace millrace::net
