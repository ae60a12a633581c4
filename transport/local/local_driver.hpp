// Moves bytes inside this process: movers copy between a region and an arena.
// Made by `builtin`.
#pragma once

#include <millrace/transport/copy/copy_job.hpp>

#include <memory>

namespace millrace::transport {

std::shared_ptr<driver> make_local_driver(
  std::shared_ptr<mover_pool> movers, const copy_limits& limits);

} // namespace millrace::transport
