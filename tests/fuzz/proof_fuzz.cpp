// Reads the proof that ends a handshake from any bytes: none that this process has not signed may
// pass. Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/net/channel/handshake.hpp>

#include <algorithm>
#include <array>

using namespace millrace;
using namespace millrace::net;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(data), size};
  static const std::array<std::byte, 3> binding{}, connector{}, acceptor{};
  static const auto genuine = prove(handshake_side::connector, binding, connector, acceptor);
  auto check = [&](std::span<const std::byte> proof, const peer_id& claimed) {
    return check_proof(proof, claimed, handshake_side::connector, binding, connector, acceptor);
  };
  MILLRACE_ASSERT(check(genuine, this_peer()).ok());
  // The input as it is. Even with the identity that belongs to its key, its signature is false.
  auto proof = decode<handshake_proof>(bytes, "proof");
  auto claimed = proof ? peer_id_of(proof->key) : this_peer();
  MILLRACE_ASSERT(!check(bytes, claimed).ok());
  // The input as a change to a genuine proof.
  auto changed = genuine;
  for (std::size_t i = 0; i < std::min(bytes.size(), changed.size()); ++i)
    changed[i] ^= bytes[i];
  MILLRACE_ASSERT(changed == genuine || !check(changed, this_peer()).ok());
  return 0;
}
