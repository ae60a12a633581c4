// The drivers and the kinds of device memory of this build. Only this file's source knows which kinds are optional.
#pragma once

#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/driver.hpp>
#include <millrace/transport/memory/arena.hpp>
#include <millrace/transport/memory/device_memory.hpp>
#include <millrace/transport/shm/shm_options.hpp>
#include <millrace/transport/staged/staged_options.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>
#include <millrace/transport/verbs/verbs_options.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace millrace::transport {

/// What a driver may use.
struct driver_deps {
  std::shared_ptr<net::io_loop> loop;
  std::shared_ptr<mover_pool> movers;
  copy_limits limits;
  std::function<std::vector<std::shared_ptr<arena>>()> shared_arenas;
  std::uint64_t granule_bytes = 64u << 20;
  shm_options shm;
  tcp_options tcp;
  verbs_options verbs;
  staged_options staged;
  /// Submits to the fabric that the driver becomes part of.
  std::function<void(transfer, completion<transfer_report>)> move;
};

/// Errors: `invalid_argument` naming the drivers there are.
result<std::shared_ptr<driver>> make_driver(const std::string& name, const driver_deps& deps);

/// Empty where the build has none.
std::vector<std::shared_ptr<device_kind>> builtin_device_kinds();

} // namespace millrace::transport
