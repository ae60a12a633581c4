// Multiples of a unit. Used where memory and files are divided into pages, blocks and extents.
#pragma once

#include <cstdint>

namespace millrace {

/// Returns the least multiple of `unit` that is not below `value`. Their sum must not overflow.
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

/// Returns the greatest multiple of `unit` that is not above `value`.
constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t unit) noexcept {
  return value / unit * unit;
}

} // namespace millrace
