// Bytes that show which region and offset they belong to.
// Used by transport tests on both sides of a process border.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace millrace::testing {

/// Returns byte `k` of a test region. `salt` distinguishes regions.
[[gnu::always_inline]] inline std::byte pattern_byte(std::uint64_t k, std::uint64_t salt) {
  return static_cast<std::byte>((k ^ k >> 8 ^ k >> 16) * 31 + salt);
}

/// A part of a test region. The thread sanitizer does not look at how it is made, which would take
/// many times as long.
struct pattern_part {
  static constexpr std::uint64_t bytes_max = 4096;
  std::byte bytes[bytes_max];

  __attribute__((no_sanitize("thread"))) void make(
    std::uint64_t first, std::uint64_t length, std::uint64_t salt) {
    for (std::uint64_t i = 0, k = first; i < length; ++i, ++k)
      bytes[i] = pattern_byte(k, salt);
  }
};

/// Writes the bytes of a test region from number `first` on, in copies that sanitizers see.
inline void write_pattern(
  std::byte* to, std::uint64_t first, std::uint64_t length, std::uint64_t salt) {
  pattern_part part;
  for (std::uint64_t at = 0; at < length; at += part.bytes_max) {
    auto size = std::min(length - at, part.bytes_max);
    part.make(first + at, size, salt);
    std::memcpy(to + at, part.bytes, size);
  }
}

inline std::vector<std::byte> pattern(std::uint64_t length, std::uint64_t salt) {
  std::vector<std::byte> out(length);
  write_pattern(out.data(), 0, length, salt);
  return out;
}

/// Returns whether these are the bytes of a test region from number `first` on.
inline bool is_pattern(std::span<const std::byte> bytes, std::uint64_t first, std::uint64_t salt) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != pattern_byte(first + i, salt))
      return false;
  return true;
}

} // namespace millrace::testing
