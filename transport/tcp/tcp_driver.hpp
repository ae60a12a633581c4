// The driver between any hosts: it moves bytes over several TCP streams for each peer. Made by
// `builtin`.
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
