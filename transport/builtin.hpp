// The drivers and the kinds of device memory of this build. Only this file's source names kinds and knows which are
// optional.
#pragma once

#include <millrace/transport/driver_kind.hpp>
#include <millrace/transport/memory/device_memory.hpp>

#include <memory>
#include <string>
#include <vector>

namespace millrace::transport {

/// In the order in which the fabric prefers them.
const std::vector<driver_kind>& builtin_drivers();

/// Empty where the build has none.
std::vector<std::shared_ptr<device_kind>> builtin_device_kinds();

} // namespace millrace::transport
