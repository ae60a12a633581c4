// Reads what travels on bulk streams, and what tcp drivers tell each other, from any bytes.
// Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/transport/tcp/messages.hpp>
#include <millrace/transport/tcp/stream_proof.hpp>
#include <millrace/transport/tcp/wire.hpp>

#include <algorithm>

using namespace millrace;
using namespace millrace::transport::tcp;

namespace {

void read_claim(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(claim_message))
    return;
  auto a = decode_claim(bytes.first<sizeof(claim_message)>());
  if (!a)
    return;
  auto again = encode_claim(*a);
  MILLRACE_ASSERT(std::equal(again.begin(), again.end(), bytes.begin()));
}

// Reads as a stream does: a header, then as many bytes as it says.
void read_units(std::span<const std::byte> bytes) {
  while (bytes.size() >= header_bytes) {
    auto h = decode_header(bytes.first<header_bytes>());
    if (!h)
      return;
    bytes = bytes.subspan(header_bytes);
    auto body = h->body_bytes();
    MILLRACE_ASSERT(body <= body_bytes_max);
    if (bytes.size() < body)
      return;
    if (h->kind == unit_kind::read || h->kind == unit_kind::write) {
      auto target = decode_target(*h, bytes.first(body));
      if (!target)
        return;
      std::uint64_t sum = 0;
      for (auto& r : target->ranges)
        sum += r.length;
      MILLRACE_ASSERT(sum == h->length && target->ranges.size() == h->ranges);
    }
    bytes = bytes.subspan(body);
    if (!h->has_payload())
      continue;
    if (bytes.size() < h->length || bytes.size() - h->length < trailer_bytes)
      return;
    bytes = bytes.subspan(h->length);
    decode_trailer(bytes.first<trailer_bytes>());
    bytes = bytes.subspan(trailer_bytes);
  }
}

void read_message(std::span<const std::byte> bytes) {
  if (auto told = decode<announce>(bytes, "announcement")) {
    auto again = decode<announce>(encode(*told), "announcement");
    MILLRACE_ASSERT(again && again->group == told->group && again->addresses == told->addresses);
  }
  static_cast<void>(decode<lost>(bytes, "message"));
  static_cast<void>(decode<gone>(bytes, "message"));
}

} // namespace

// The first byte says what the rest shall be.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(data) + 1, size - 1};
  switch (data[0] % 3) {
  case 0:
    read_claim(bytes);
    break;
  case 1:
    read_units(bytes);
    break;
  default:
    read_message(bytes);
  }
  return 0;
}
