// Decodes and checks every message of the staged driver from untrusted bytes.
// Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/transport/staged/messages.hpp>

#include <cstdint>

using namespace millrace;
namespace st = millrace::transport::staged;

namespace {

constexpr std::uint64_t chunk_bytes = 1u << 20;

bool passes(const st::hello& m) { return st::check(m).ok(); }
bool passes(const st::stage& m) { return st::check(m, chunk_bytes).ok(); }
template <class Message>
bool passes(const Message&) {
  return true;
}

// What passes must encode to something that decodes to the same bytes again, and passes again.
template <class Message>
void try_one(wire_reader& reader) {
  Message m;
  if (!reader(m) || !passes(m))
    return;
  auto once = encode(m);
  auto again = decode<Message>(once, "fuzz");
  MILLRACE_ASSERT(again && passes(*again) && encode(*again) == once);
  if constexpr (std::is_same_v<Message, st::stage>) {
    std::uint64_t total = 0;
    for (auto& r : m.ranges) {
      MILLRACE_ASSERT(total + r.length >= total);
      total += r.length;
    }
    MILLRACE_ASSERT(total <= chunk_bytes && m.ranges.size() <= st::ranges_max);
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  wire_reader reader{{reinterpret_cast<const std::byte*>(data), size}};
  st::message_kind kind{};
  reader(kind);
  switch (kind) {
  case st::message_kind::hello:
    try_one<st::hello>(reader);
    break;
  case st::message_kind::stage:
    try_one<st::stage>(reader);
    break;
  case st::message_kind::staged:
    try_one<st::staged>(reader);
    break;
  case st::message_kind::commit:
    try_one<st::commit>(reader);
    break;
  case st::message_kind::committed:
    try_one<st::committed>(reader);
    break;
  case st::message_kind::release:
    try_one<st::release>(reader);
    break;
  }
  return 0;
}
