// Lengths of time in milliseconds, the unit of most settings. Used for bounds of options.
#pragma once

#include <cstdint>

namespace millrace {

inline constexpr std::uint64_t second_ms = 1'000;
inline constexpr std::uint64_t hour_ms = 3'600 * second_ms;
inline constexpr std::uint64_t day_ms = 24 * hour_ms;

} // namespace millrace
