// A transfer in flight.
// Made by the driver, run by `asking_side`.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/verbs/registered_memory.hpp>
#include <millrace/transport/verbs/transfer_plan.hpp>

#include <deque>
#include <memory>
#include <vector>

namespace millrace::transport::verbs {

/// The keys of one region of the peer, as granted.
struct key_set {
  struct pair_keys {
    std::uint32_t pair = 0;
    std::uint32_t generation = 0;       // the queue pair's, for which they are valid
    distance way = distance::same_node; // from the owner's device to the memory
    std::vector<std::uint32_t> keys;
  };

  std::uint64_t region_bytes = 0;
  std::vector<std::uint64_t> range_ends; // offsets in the region, ascending
  std::vector<std::uint64_t> addresses;  // where the ranges begin
  std::vector<pair_keys> pairs;

  static key_set of(const granted& m);
  bool same_ranges(const key_set& other) const noexcept {
    return range_ends == other.range_ends && addresses == other.addresses;
  }
  /// Returns null if there are none for that queue pair.
  const pair_keys* over(std::uint32_t pair, std::uint32_t generation) const noexcept;
};

/// A transfer. The completion thread owns it once it has started.
struct running_transfer {
  transfer what;
  completion<transfer_report> done;
  std::vector<std::shared_ptr<registered_memory>> memories;
  std::vector<local_keys> keys_of_device; // by the device's index
  std::uint64_t total_bytes = 0;
  std::uint64_t node_mask = 0; // the NUMA nodes of its local memory

  request_cutter cutter;
  std::deque<request> again; // requests that must be posted again
  std::size_t in_flight = 0;
  std::shared_ptr<const key_set> keys;
  bool asking = false;
  bool checked = false; // its ranges were checked against the region
  std::uint32_t refused = 0;
  std::uint32_t home = 0; // the pair it stays on while that is up, unless it is striped
  status failure;
  time_point moved_at{};
  std::size_t place = 0; // in the list of its link
  bool ended = false;    // its completion runs in a moment

  // For a write, digests are computed while it is sent.
  bool digesting = false;
  copied settled;

  bool has_work() const noexcept { return failure.ok() && (!again.empty() || !cutter.at_end()); }
  bool at_end() const noexcept {
    return in_flight == 0 && !digesting &&
      (!failure.ok() || (checked && again.empty() && cutter.at_end()));
  }
};

/// Does what remains after the bytes have arrived, on the movers: digests the local side and writes
/// its lines back.
void settle(
  mover_pool& movers, const copy_limits& limits, std::shared_ptr<running_transfer> t,
  bool write_back, completion<copied> done);

} // namespace millrace::transport::verbs
