// Reads hellos and goodbyes from any bytes; what is accepted must survive the wire.
// Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/net/channel/handshake.hpp>

using namespace millrace;
using namespace millrace::net;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(data), size};
  if (auto h = decode_hello(bytes)) {
    auto again = decode_hello(encode(*h));
    MILLRACE_ASSERT(again && *again == *h);
    MILLRACE_ASSERT(h->name.size() <= peer_name_bytes_max);
  }
  auto why = decode_goodbye(bytes);
  MILLRACE_ASSERT(encode_goodbye(why).size() <= handshake_bytes_max);
  return 0;
}
