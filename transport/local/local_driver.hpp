// Moves bytes inside this process: movers copy between a region and an arena.
// Made by `builtin`.
#pragma once

#include <millrace/transport/driver_kind.hpp>

namespace millrace::transport {

std::shared_ptr<driver> make_local_driver(const driver_deps& deps);

} // namespace millrace::transport
