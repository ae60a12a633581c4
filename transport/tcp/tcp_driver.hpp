// Moves bytes between hosts over several TCP streams for each peer. It works between any hosts.
#pragma once

#include <millrace/transport/driver_kind.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

namespace millrace::transport {

/// Makes the driver.
/// Errors:  `invalid_argument` for text that is no address; `already_exists` or `io_error` for an
///          address at which this process cannot listen.
result<std::shared_ptr<peer_driver>> make_tcp_driver(
  const driver_deps& deps, const tcp_options& options);

} // namespace millrace::transport
