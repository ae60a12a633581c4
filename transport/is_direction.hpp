// Checks a direction that came over the wire.
// Used by the messages of each driver.
#pragma once

#include <millrace/transport/driver.hpp>

#include <cstdint>

namespace millrace::transport {

constexpr bool is_direction(std::uint8_t number) noexcept {
  return number == static_cast<std::uint8_t>(direction::read) ||
    number == static_cast<std::uint8_t>(direction::write);
}

} // namespace millrace::transport
