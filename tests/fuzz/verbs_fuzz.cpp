// Decodes and checks every message of the verbs driver, and what strangers send by rdma_cm, from
// untrusted bytes. Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/transport/verbs/cm_connection.hpp>
#include <millrace/transport/verbs/messages.hpp>

#include <algorithm>
#include <cstdint>

using namespace millrace;
namespace vb = millrace::transport::verbs;

namespace {

// What passes must encode to something that decodes to the same bytes again, and passes again.
template <class Message>
void try_one(wire_reader& reader) {
  Message m;
  if (!reader(m) || !check(m).ok())
    return;
  auto once = encode(m);
  auto again = decode<Message>(once, "fuzz");
  MILLRACE_ASSERT(again && check(*again).ok() && encode(*again) == once);
  if constexpr (std::is_same_v<Message, vb::granted>) {
    std::uint64_t total = 0;
    for (auto& r : m.ranges) {
      MILLRACE_ASSERT(r.keys.size() == m.pairs.size() && r.length > 0);
      MILLRACE_ASSERT(total + r.length > total && r.address + r.length >= r.address);
      total += r.length;
    }
    MILLRACE_ASSERT(total <= m.region_bytes);
  }
}

// No message of the channel: private data of a request, as it comes.
constexpr vb::message_kind by_rdma_cm{200};

void try_words(std::span<const std::byte> bytes) {
  auto words = vb::cm_words::decode(bytes);
  MILLRACE_ASSERT(words.has_value() == (bytes.size() >= vb::cm_words::size_bytes));
  if (!words)
    return;
  auto again = words->encode();
  MILLRACE_ASSERT(std::equal(again.begin(), again.end(), bytes.begin()));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  wire_reader reader{{reinterpret_cast<const std::byte*>(data), size}};
  vb::message_kind kind{};
  reader(kind);
  if (kind == by_rdma_cm) {
    try_words(reader.rest());
    return 0;
  }
  switch (kind) {
  case vb::message_kind::hello:
    try_one<vb::hello>(reader);
    break;
  case vb::message_kind::connect:
    try_one<vb::connect>(reader);
    break;
  case vb::message_kind::ready:
    try_one<vb::ready>(reader);
    break;
  case vb::message_kind::ask:
    try_one<vb::ask>(reader);
    break;
  case vb::message_kind::granted:
    try_one<vb::granted>(reader);
    break;
  case vb::message_kind::withdrawn:
    try_one<vb::withdrawn>(reader);
    break;
  case vb::message_kind::lost:
    try_one<vb::lost>(reader);
    break;
  }
  return 0;
}
