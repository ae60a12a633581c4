// The drivers and the kinds of device memory of this build. Only builtin.cpp names the kinds and
// knows which of them are optional.
#pragma once

#include <millrace/config/option_set.hpp>
#include <millrace/transport/driver_kind.hpp>
#include <millrace/transport/memory/device_memory.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace millrace::transport {

/// Returns the kinds of drivers, in the order in which the fabric prefers them.
const std::vector<driver_kind>& builtin_drivers();

/// Returns the kinds of device memory; empty if the build has none.
std::vector<std::shared_ptr<device_kind>> builtin_device_kinds();

} // namespace millrace::transport
