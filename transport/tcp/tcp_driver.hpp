// Moves bytes between hosts over several TCP streams for each peer: what reaches everywhere.
#pragma once

#include <millrace/transport/driver_kind.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

namespace millrace::transport {

/// Errors: `invalid_argument` for an address that is none; `already_exists`, `io_error` for one that cannot be listened
/// at.
result<std::shared_ptr<peer_driver>> make_tcp_driver(
  const driver_deps& deps, const tcp_options& options);

} // namespace millrace::transport
