// Arithmetic on handles that came from outside.
#include <millrace/core/bulk_handle.hpp>

#include <limits>

namespace millrace {

std::uint64_t size_bytes(const bulk_handle& handle) noexcept {
  std::uint64_t sum = 0;
  for (auto& s : handle.segments)
    if (__builtin_add_overflow(sum, s.length, &sum))
      return std::numeric_limits<std::uint64_t>::max();
  return sum;
}

} // namespace millrace
