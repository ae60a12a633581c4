// xxHash3 with run-time choice of the vector width.
#include <millrace/core/digest.hpp>

#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace millrace {

std::uint64_t digest(const void* data, std::size_t size_bytes) noexcept {
  return XXH3_64bits(data, size_bytes);
}

} // namespace millrace
