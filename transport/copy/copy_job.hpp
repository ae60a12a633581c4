// The job that runs a transfer's ops, cut into chunks, on movers against a region of this process.
// Called by the drivers whose owner side copies.
#pragma once

#include <millrace/transport/copy/mover_pool.hpp>
#include <millrace/transport/driver.hpp>
#include <millrace/transport/memory/region.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace millrace::transport {

/// A transfer against one region of this process.
struct copy_job {
  direction dir = direction::read; // read: region → arena; write: arena → region
  region_ref memory;
  copy_list ops; // checked: inside the region and the arena
  bool digests = false;
  bool write_back = false;                      // write back the arena side, for reads
  std::shared_ptr<void> hold;                   // keeps the arena side alive
  std::shared_ptr<std::atomic<bool>> abandoned; // may be null; true stops the job at the next chunk
  /// May be empty. A mover calls it before it touches that part of the arena side. It may block; an
  /// error ends the job.
  std::function<status(std::byte* local, std::uint64_t length)> prepare;
};

/// The result of a job.
struct copied {
  std::vector<std::uint64_t> digests;
  bool written_back = false;
};

struct copy_limits {
  std::uint64_t chunk_bytes = 1u << 20; // bytes that a mover copies in one turn
  /// Smaller jobs run on the calling thread: to wake a mover takes longer than to copy them.
  std::uint64_t inline_bytes_max = 128u << 10;
  /// The same for copies within the process, which no I/O loop makes.
  std::uint64_t inline_local_bytes_max = 256u << 10;
  bool near_memory = true; // a mover copies on the NUMA node that it writes to
};

/// The program waits for what comes into its memory: a load or a restore. It computes while its
/// memory is read.
constexpr job_class class_for(direction dir) noexcept {
  return dir == direction::write ? job_class::urgent : job_class::transfer;
}

/// Checks that every op lies inside a region of `region_bytes`.
/// Errors:  `permission_denied` naming the range.
[[nodiscard]] status check_ops(std::span<const copy_op> ops, std::uint64_t region_bytes);

/// Runs the job on movers, see `class_for`. A tiny job with nothing to prepare runs before the call
/// returns. Device memory is copied on the threads for devices.
void run_copy_job(
  mover_pool& movers, const copy_limits& limits, copy_job job, completion<copied> done);

} // namespace millrace::transport
