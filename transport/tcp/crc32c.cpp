// Calls the library, which picks the instructions that the processor has.
#include <millrace/transport/tcp/crc32c.hpp>

#include <isa-l/crc.h>

#include <algorithm>

namespace millrace::transport::tcp {

std::uint32_t add_crc32c(
  std::uint32_t sum, std::span<const iovec> parts, std::uint64_t size_bytes) noexcept {
  constexpr std::uint64_t step_bytes = 1u << 30; // the library counts in `int`
  for (auto& part : parts) {
    auto* at = static_cast<unsigned char*>(part.iov_base);
    auto left = std::min<std::uint64_t>(part.iov_len, size_bytes);
    size_bytes -= left;
    while (left > 0) {
      auto now = std::min(left, step_bytes);
      sum = ~crc32_iscsi(at, static_cast<int>(now), ~sum);
      at += now;
      left -= now;
    }
  }
  return sum;
}

} // namespace millrace::transport::tcp
