// The messages between two fabrics, sent over their channel among those of the drivers.
// Used by the fabric.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::transport {

/// These values travel on the wire: append new ones, never renumber. Older builds ignore all of
/// them, as messages of a driver that they do not have.
enum class fabric_message : std::uint8_t {
  drivers = 1,
};
constexpr std::string_view driver_of(fabric_message) noexcept { return "fabric"; }

/// Names the drivers of the sender that talk to their counterpart. It is sent when the channel
/// opens, before any request, so no transfer begins before it has come.
struct drivers_here {
  std::vector<std::string> names;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, drivers_here& x) {
  return f(x.names);
}

} // namespace millrace::transport
