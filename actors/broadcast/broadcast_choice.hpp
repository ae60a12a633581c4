// Chooses how a group broadcasts: predicts the time of every algorithm, and takes the shortest.
// Pure. Used by groups, and by `millrace predict`.
#pragma once

#include <millrace/actors/broadcast/cost_model.hpp>
#include <millrace/actors/broadcast/plan.hpp>

#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace::actors {

/// Where the message lies at all members.
enum class broadcast_memory : std::uint8_t { host, gpu };

/// What is to be broadcast, and to whom.
struct broadcast_case {
  std::uint32_t members = 2;
  std::uint32_t hosts = 2; // on which the members are dealt out evenly; `members` at most
  std::uint64_t bytes = 0; // 1 at least
  std::uint32_t roots = 1; // members that broadcast so many bytes each, at the same time
  broadcast_memory memory = broadcast_memory::host;
  bool multicast = false;        // the network has it
  std::optional<double> overlap; // of several roots, below 1; without it `usual_overlap`
};

/// How it is done.
struct broadcast_scheme {
  broadcast_algorithm algorithm = broadcast_algorithm::ring;
  unsigned k = 2;                // of a k-nomial tree
  std::uint64_t chunk_bytes = 0; // 1 at least; chunks are of one size, so this is the largest

  bool operator==(const broadcast_scheme&) const = default;
};

struct broadcast_choice {
  broadcast_scheme scheme;
  double predicted_s = 0;
};

/// Returns the time that a scheme takes.
///
/// The leaders of hosts are the members of the equations: a ring takes equation 2, a k-nomial tree
/// `knomial_one_port_s`, a multicast `multicast_host_s` or, from a GPU, `multicast_copied_s`. For
/// memory of the host, B_G is B_H. The message is cut into chunks of one size.
///
/// Three terms are ours. Each send from leader to leader takes `latency_s` longer. The other
/// members of a host copy each chunk when their leader has it, while the next one is on its way:
/// the slower of the two sets the pace, and `shared_host_s` of the last chunk is added. And several
/// broadcasts never take less than `least_s`.
double predicted_s(
  const broadcast_costs& costs, const broadcast_case& of, const broadcast_scheme& scheme);

/// Returns the time that no algorithm undercuts: a host receives the bytes of all roots but its own
/// through one port, and its members copy all of them.
/// Source: ours. Equation 9 has no such bound, and section 8 lets the overlap grow with the roots.
double least_s(const broadcast_costs& costs, const broadcast_case& of);

/// Returns the part of several broadcasts that overlaps, where it was not measured.
///
/// The paper measured 20 % for multicast, 50 % for rings and nearly none for k-nomial trees with 16
/// roots, and predicts 5 % more with each doubling. We follow that line below 16 roots, too, down
/// to 0, and up to 95 %. For multicast that gives 5, 10 and 15 % for 2, 4 and 8 roots, where 4, 12
/// and 13 % were measured.
/// Source: the broadcast paper, section 8.
double usual_overlap(broadcast_algorithm algorithm, std::uint32_t roots);

/// Returns the best k and chunk for one algorithm. Chunks are powers of two from 4 KiB on, or the
/// whole message; k is 16 at most.
broadcast_choice best_of(
  const broadcast_costs& costs, const broadcast_case& of, broadcast_algorithm algorithm);

/// Returns the scheme with the shortest predicted time. Multicast is chosen only if the network has
/// it.
broadcast_choice choose_broadcast(const broadcast_costs& costs, const broadcast_case& of);

} // namespace millrace::actors
