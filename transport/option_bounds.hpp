// The check that a driver's options lie within their bounds. Used by `check` of each driver's options.
#pragma once

#include <millrace/core/durations.hpp>
#include <millrace/core/status.hpp>

#include <cstdint>
#include <span>
#include <string>

namespace millrace::transport {

struct option_bound {
  const char* name;
  std::uint64_t value;
  std::uint64_t min;
  std::uint64_t max;
};

/// Errors: `invalid_argument`: "tcp: streams is 0; it must be from 1 to 64".
[[nodiscard]] inline status check_bounds(
  const std::string& driver, std::span<const option_bound> bounds) {
  for (auto& b : bounds)
    if (b.value < b.min || b.value > b.max)
      return {
        errc::invalid_argument,
        driver + ": " + b.name + " is " + std::to_string(b.value) + "; it must be from " +
          std::to_string(b.min) + " to " + std::to_string(b.max)};
  return {};
}

} // namespace millrace::transport
