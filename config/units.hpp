// Sizes and durations as people write them. Used by the configuration and by command lines.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::config {

/// Reads a whole number without sign: "0", "4096".
/// Errors: `invalid_argument` that says what is expected.
result<std::uint64_t> parse_count(std::string_view text);

/// Reads "4096", "4096B", "64KiB", "512MiB", "1GiB", "2TiB", with or without a space.
/// Errors: `invalid_argument`; for "1GB" or "1G" it names the unit that is meant.
result<std::uint64_t> parse_size(std::string_view text);

/// Reads "50us", "500ms", "5s", "2m", "1h", or "0", in microseconds.
/// Errors: `invalid_argument`; a number without unit is refused, since it could mean any.
result<std::uint64_t> parse_duration_us(std::string_view text);

/// Returns "256MiB": the largest unit that needs no fraction.
std::string format_size(std::uint64_t size_bytes);

/// Returns "10s" or "1500ms": the largest unit that needs no fraction.
std::string format_duration_us(std::uint64_t duration_us);

} // namespace millrace::config
