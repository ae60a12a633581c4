// Computes with handles that came from other processes. Called when a handle is decoded.
#include <millrace/core/bulk_handle.hpp>

#include <limits>

namespace millrace::detail {

std::optional<std::uint64_t> total_bytes(const std::vector<segment>& ranges) noexcept {
  if (ranges.empty())
    return std::nullopt;
  std::uint64_t sum = 0;
  for (auto& range : ranges)
    if (__builtin_add_overflow(sum, range.length, &sum))
      return std::numeric_limits<std::uint64_t>::max();
  return sum;
}

} // namespace millrace::detail
