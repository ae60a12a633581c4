// Moves bytes between processes of one host: the owner of a region copies straight into the peer's arena.
#pragma once

#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/memory/arena.hpp>
#include <millrace/transport/shm/shm_options.hpp>

#include <functional>
#include <memory>
#include <vector>

namespace millrace::transport {

struct shm_driver_options {
  copy_limits limits;
  std::uint64_t granule_bytes = 64u << 20; // see `fabric_options`
  shm_options bounds;
};

/// Errors: those of `check`.
/// `shared`: arenas announced to every peer as soon as it connects, so that no transfer waits for the mapping.
result<std::shared_ptr<peer_driver>> make_shm_driver(
  std::shared_ptr<net::io_loop> loop, std::shared_ptr<mover_pool> movers,
  const shm_driver_options& options, std::function<std::vector<std::shared_ptr<arena>>()> shared);

} // namespace millrace::transport
