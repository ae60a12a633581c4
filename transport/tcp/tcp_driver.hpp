// Moves bytes between hosts over several TCP streams for each peer: what reaches everywhere.
#pragma once

#include <millrace/net/channel/stream_acceptor.hpp>
#include <millrace/transport/driver.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

#include <memory>

namespace millrace::transport {

/// Errors: `invalid_argument` for options out of their bounds; `already_exists`, `io_error` for an address that
/// cannot be listened at.
result<std::shared_ptr<peer_driver>> make_tcp_driver(
  const std::shared_ptr<net::io_loop>& loop, const tcp_options& options);

} // namespace millrace::transport
