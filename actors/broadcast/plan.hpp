// Who receives from whom in a broadcast, and who sends to whom.
// Pure. Used by members of a group, each of which computes the same plan.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace millrace::actors {

enum class broadcast_algorithm : std::uint8_t {
  ring,     // each leader sends to the next one
  knomial,  // leaders are a k-nomial tree
  multicast // the root's packets reach all leaders
};

/// Returns "ring", "k-nomial", "multicast".
std::string_view to_string(broadcast_algorithm algorithm) noexcept;

/// The most members that a group has.
inline constexpr std::uint32_t broadcast_members_max = 65'536;

/// What one member does with every chunk.
struct broadcast_role {
  std::uint32_t host = 0;
  std::optional<std::uint32_t> receives_from; // none: the root
  // Leaders of other hosts, in the order in which a chunk is sent. A multicast is one send to all.
  std::vector<std::uint32_t> sends_to;
  std::vector<std::uint32_t> read_by; // members of the host, which read in parallel
};

struct broadcast_plan {
  broadcast_algorithm algorithm = broadcast_algorithm::ring;
  std::uint32_t root = 0;
  std::vector<std::uint32_t> leaders; // one for each host, the root first
  std::vector<broadcast_role> roles;  // by member
};

/// Plans a broadcast from `root` to all members.
///
/// One member of each host leads it: the root on its own host, the first member on the others.
/// Leaders receive from leaders, and the other members of a host read their leader's memory. The
/// hosts follow each other in the order of their first members, from the root's host on and around,
/// so that rings of different roots are one ring.
///
/// A ring of h hosts has a depth of h - 1. A k-nomial tree has a depth of ⌈log_k h⌉ at most, and
/// its root has (k - 1) × ⌈log_k h⌉ children at most. A parent serves its largest subtree first.
///
/// `host_of`: for each member, a number that all members of its host have.
/// Cost:   O(members × log members).
/// Errors: `invalid_argument` for no members or too many, a root that is none, and k below 2.
/// Source: the broadcast paper, sections 3.1.1, 3.1.2 and 6; one leader for each host, where the
///         paper has one for each network device.
result<broadcast_plan> plan_broadcast(
  std::span<const std::uint32_t> host_of, std::uint32_t root, broadcast_algorithm algorithm,
  unsigned k = 2);

/// Returns the hosts of members that are dealt out evenly, neighbours together. If they do not
/// divide, the first hosts get one more. There are at least as many members as hosts.
std::vector<std::uint32_t> deal_members(std::uint32_t members, std::uint32_t hosts);

} // namespace millrace::actors
