// Copies within the memory of this process, on the movers.
// Called by the fabric.
#pragma once

#include <millrace/transport/copy/copy.hpp>
#include <millrace/transport/copy/copy_job.hpp>

#include <vector>

namespace millrace::transport {

/// Does the work of `fabric::copy`.
void run_local_copies(
  mover_pool& movers, const copy_limits& limits, std::vector<local_copy> parts, bool write_back,
  completion<void> done);

} // namespace millrace::transport
