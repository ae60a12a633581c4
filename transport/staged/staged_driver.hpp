// Moves bytes with a peer's device memory that no other driver reaches. They pass through the
// owner's staging memory, which the other drivers reach.
// Made by `builtin`.
#pragma once

#include <millrace/transport/copy/mover_pool.hpp>
#include <millrace/transport/driver.hpp>
#include <millrace/transport/staged/staged_options.hpp>

#include <functional>
#include <memory>

namespace millrace::transport {

/// `move`: submits a transfer with memory of the host to the fabric. Errors: those of `check`.
result<std::shared_ptr<peer_driver>> make_staged_driver(
  std::shared_ptr<net::io_loop> loop, std::shared_ptr<mover_pool> movers,
  const staged_options& options, std::function<void(transfer, completion<transfer_report>)> move);

} // namespace millrace::transport
