// The driver for a peer's device memory that no other one reaches: bytes pass through the owner's
// staging memory, which other drivers reach. Made by `builtin`.
#pragma once

#include <millrace/transport/driver_kind.hpp>
#include <millrace/transport/staged/staged_options.hpp>

namespace millrace::transport {

/// `deps.move` gets transfers with memory of the host only.
result<std::shared_ptr<peer_driver>> make_staged_driver(
  const driver_deps& deps, const staged_options& options);

} // namespace millrace::transport
