// How a transfer becomes work requests, and which rails belong together. Pure; used by `peer_link`.
#pragma once

#include <millrace/transport/driver.hpp>
#include <millrace/transport/verbs/messages.hpp>

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace millrace::transport::verbs {

/// Part of an op: local bytes in one registration.
struct local_piece {
  std::uint64_t remote_offset = 0;
  std::byte* data = nullptr;
  std::uint64_t length = 0;
  std::uint32_t memory = 0; // which registration of the transfer
};

/// One READ or WRITE: a run of remote bytes inside one range, and where they lie here.
struct request {
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;
  std::vector<local_piece> local;
  std::uint32_t attempts = 0;
};

/// Local keys of the registrations of a transfer, in the order in which its pieces name them.
using local_keys = std::vector<std::uint32_t>;

struct request_limits {
  std::size_t pieces_max = 1;
  std::uint64_t bytes_max = 1;
};

/// Sorts pieces by where their remote side lies, and joins those that touch on both sides.
std::vector<local_piece> arrange(std::vector<local_piece> pieces);

/// Cuts arranged pieces into requests, one at a time.
class request_cutter {
public:
  request_cutter() = default;
  explicit request_cutter(std::vector<local_piece> pieces) : pieces_(std::move(pieces)) {}

  bool at_end() const noexcept { return next_ == pieces_.size(); }
  /// The next request: as many pieces as lie next to each other remotely, within the limits, and no byte beyond
  /// the range that holds the first. `range_ends`: ascending, the last at or beyond every piece. Not at the end.
  request cut(const request_limits& limits, std::span<const std::uint64_t> range_ends);

private:
  std::vector<local_piece> pieces_;
  std::size_t next_ = 0;
  std::uint64_t done_ = 0; // of pieces_[next_]
};

/// Two rails that talk to each other: places in the lists of the two sides.
struct rail_pairing {
  std::uint32_t first = 0;
  std::uint32_t second = 0;

  friend bool operator==(const rail_pairing&, const rail_pairing&) = default;
};

/// Every rail of the longer list gets a partner of the same kind of network: the one whose address shares the
/// longest prefix, among those that have the fewest partners yet. Both sides compute the same from the same lists.
std::vector<rail_pairing> pair_rails(
  std::span<const rail_info> first, std::span<const rail_info> second);

/// From the devices of a rail to the memory of a transfer, on this side and on the other.
struct rail_distance {
  std::uint32_t pair = 0;
  distance here = distance::same_node;
  distance there = distance::same_node;
};

/// The rail of a transfer that stays on one: among those of the shortest way in all the next one with every `turn`.
/// None where there are none.
std::optional<std::uint32_t> choose_rail(std::span<const rail_distance> rails, std::uint32_t turn);

/// Requests that each rail may have under way: the fastest all of `depth_max`, the others in proportion to their
/// rate, 2 at least. A rate of 0 is not known yet and counts as the fastest.
std::vector<std::uint32_t> depths(std::span<const std::uint64_t> rates, std::uint32_t depth_max);

} // namespace millrace::transport::verbs
