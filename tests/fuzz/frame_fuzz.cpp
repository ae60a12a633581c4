// Feeds any bytes to the frame parser, in pieces, and checks its bounds.
// Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/net/channel/frame_parser.hpp>

#include <algorithm>

using namespace millrace::net;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint32_t body_max = 1u << 20;
  // The first byte says how the rest is cut.
  auto step = size > 0 ? std::size_t{data[0]} + 1 : 1;
  frame_parser parser{body_max, 8};
  std::size_t received = 0;
  for (std::size_t at = 1; at < size;) {
    auto room = parser.room();
    auto n = std::min({step, size - at, room.size()});
    std::copy_n(reinterpret_cast<const std::byte*>(data) + at, n, room.begin());
    parser.commit(n);
    at += n;
    received += n;
    while (true) {
      auto next = parser.next();
      if (!next)
        return 0;
      if (!*next)
        break;
      MILLRACE_ASSERT((*next)->body.size() == (*next)->header.body_bytes);
      MILLRACE_ASSERT((*next)->body.size() <= body_max && (*next)->header.fds <= 8);
    }
    MILLRACE_ASSERT(parser.capacity_bytes() <= std::max(frame_parser::small_bytes, 2 * received));
  }
  return 0;
}
