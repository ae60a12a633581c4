// xxHash3, which chooses its vector width at run time. Called where bytes are stored, moved and
// verified.
#include <millrace/core/assert.hpp>
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

running_digest::running_digest() noexcept : state_(XXH3_createState()) {
  MILLRACE_ASSERT(state_);
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}

running_digest::~running_digest() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void running_digest::add(const void* data, std::size_t size_bytes) noexcept {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), data, size_bytes);
}

void running_digest::add_text(std::string_view text) noexcept {
  auto length = std::uint64_t{text.size()};
  add(&length, sizeof(length));
  add(text.data(), text.size());
}

std::uint64_t running_digest::value() const noexcept {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_));
}

} // namespace millrace
