// Moves bytes inside this process on the movers. Called by the fabric.
#pragma once

#include <millrace/transport/driver_kind.hpp>
#include <millrace/transport/toy/toy_options.hpp>

namespace millrace::transport {

result<std::shared_ptr<driver>> make_toy_driver(
  const driver_deps& deps, const toy_options& options);

} // namespace millrace::transport
