// Turns a transfer into work requests, and pairs rails. Pure functions.
// Used by `peer_link` and its sides.
#pragma once

#include <millrace/transport/driver.hpp>
#include <millrace/transport/verbs/messages.hpp>

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace millrace::transport::verbs {

/// Local bytes that follow each other in one registration, and where they lie in the region.
struct local_run {
  std::uint64_t remote_offset = 0;
  std::byte* data = nullptr;
  std::uint64_t length = 0;
  std::uint32_t memory = 0; // index of the transfer's registration
};

/// One READ or WRITE: a run of remote bytes inside one range, and its local runs.
struct request {
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;
  std::vector<local_run> local;
  std::uint32_t attempts = 0;
};

/// The local keys of a transfer's registrations, in the order in which its runs number them.
using local_keys = std::vector<std::uint32_t>;

struct request_limits {
  std::size_t runs_max = 1;
  std::uint64_t bytes_max = 1;
};

/// Sorts runs by their remote offset, and joins those that touch on both sides.
std::vector<local_run> arrange(std::vector<local_run> runs);

/// Cuts arranged runs into requests, one at a time.
class request_cutter {
public:
  request_cutter() = default;
  explicit request_cutter(std::vector<local_run> runs) : runs_(std::move(runs)) {}

  bool at_end() const noexcept { return next_ == runs_.size(); }
  /// Returns the next request: as many runs as are contiguous remotely, within the limits, and
  /// within the range that has the first byte. `range_ends` must ascend, and its last end must lie
  /// at or beyond every run. Must not be called at the end.
  request cut(const request_limits& limits, std::span<const std::uint64_t> range_ends);

private:
  std::vector<local_run> runs_;
  std::size_t next_ = 0;
  std::uint64_t done_ = 0; // in runs_[next_]
};

/// Two connected rails, as places in the lists of the two sides.
struct rail_pairing {
  std::uint32_t first = 0;
  std::uint32_t second = 0;

  friend bool operator==(const rail_pairing&, const rail_pairing&) = default;
};

/// Gives every rail of the longer list a partner of the same kind of network: the one whose address
/// shares the longest prefix, among those with the fewest partners so far. Both sides compute the
/// same from the same lists.
std::vector<rail_pairing> pair_rails(
  std::span<const rail_info> first, std::span<const rail_info> second);

/// The distance from a rail's devices to a transfer's memory, on this side and on the other one.
struct rail_distance {
  std::uint32_t pair = 0;
  distance here = distance::same_node;
  distance there = distance::same_node;
};

/// Returns the rail for a transfer that stays on one rail: among the nearest ones, the next one
/// with every `turn`. Nothing if there are no rails.
std::optional<std::uint32_t> choose_rail(std::span<const rail_distance> rails, std::uint32_t turn);

/// Returns how many requests each rail may have in flight: `depth_max` for the fastest, the others
/// in proportion to their rate, at least 2. A rate of 0 is unknown and counts as the fastest.
std::vector<std::uint32_t> depths(std::span<const std::uint64_t> rates, std::uint32_t depth_max);

} // namespace millrace::transport::verbs
