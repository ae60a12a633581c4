// Random values and their printed form. Called by every room.
#include <millrace/core/assert.hpp>
#include <millrace/core/ids.hpp>
#include <millrace/core/simulated_machine.hpp>

#include <sodium.h>

#include <cstdio>
#include <cstdlib>

namespace millrace {

void assertion_failed(const char* expression, const char* file, int line) noexcept {
  std::fprintf(stderr, "%s:%d: invariant broken: %s\n", file, line, expression);
  std::abort();
}

void random_bytes(void* data, std::size_t size_bytes) noexcept {
  if (simulated())
    return simulated()->fill_random(static_cast<std::byte*>(data), size_bytes);
  static const bool ready = sodium_init() >= 0;
  MILLRACE_ASSERT(ready);
  randombytes_buf(data, size_bytes);
}

std::string to_hex(const std::uint8_t* data, std::size_t size_bytes) {
  std::string text(2 * size_bytes + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), data, size_bytes);
  text.pop_back();
  return text;
}

bool equal_constant_time(const region_key& a, const region_key& b) noexcept {
  return sodium_memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
}

} // namespace millrace
