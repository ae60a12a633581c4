// DAX devices (/dev/dax0.0), which only sysfs describes. Asked by pools, and for files that peers
// map.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace millrace {

struct dax_device {
  std::uint64_t size_bytes = 0;
  std::uint64_t alignment_bytes = 0; // mappings begin and end on multiples of it
};

/// Describes the DAX device with this number. Null when the number belongs to another device.
std::optional<dax_device> find_dax_device(dev_t number);

} // namespace millrace
