// Bytes that show which region and offset they belong to.
// Used by transport tests on both sides of a process border.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::testing {

/// Returns byte `k` of a test region. `salt` distinguishes regions.
inline std::byte pattern_byte(std::uint64_t k, std::uint64_t salt) {
  return static_cast<std::byte>((k ^ k >> 8 ^ k >> 16) * 31 + salt);
}

inline std::vector<std::byte> pattern(std::uint64_t length, std::uint64_t salt) {
  std::vector<std::byte> out(length);
  for (std::uint64_t k = 0; k < length; ++k)
    out[k] = pattern_byte(k, salt);
  return out;
}

} // namespace millrace::testing
