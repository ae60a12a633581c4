// Combines the equations, and searches the chunks and the values of k.
#include <millrace/actors/broadcast/broadcast_choice.hpp>
#include <millrace/core/assert.hpp>

#include <algorithm>
#include <bit>
#include <cmath>

namespace millrace::actors {

namespace {

constexpr std::uint64_t chunk_bytes_min = 4096;
constexpr unsigned k_max = 16;
constexpr double overlap_max = 0.95;
constexpr double measured_roots = 16; // section 8
constexpr double overlap_of_doubling = 0.05;

// When the leader that is last has all chunks, and how far apart they come.
struct arrivals {
  double last_s = 0;
  double apart_s = 0;
};

arrivals arrivals_of(
  const broadcast_costs& c, const broadcast_case& of, const broadcast_scheme& scheme) {
  auto bytes = static_cast<double>(of.bytes);
  auto step_s = c.setup_s + c.chunk_bytes / c.gpu_bytes_per_s;
  switch (scheme.algorithm) {
  case broadcast_algorithm::ring:
    return {ring_pipelined_s(c, of.hosts, bytes) + (of.hosts - 1) * c.latency_s, step_s};
  case broadcast_algorithm::knomial:
    return {
      knomial_one_port_s(c, of.hosts, scheme.k, bytes) +
        knomial_depth(of.hosts, scheme.k) * c.latency_s,
      static_cast<double>(knomial_degree(of.hosts, scheme.k)) * step_s};
  case broadcast_algorithm::multicast:
    break;
  }
  auto send_s = multicast_host_s(c, of.hosts, c.chunk_bytes);
  if (of.memory == broadcast_memory::host)
    return {multicast_host_s(c, of.hosts, bytes) + c.latency_s, send_s};
  return {
    multicast_copied_s(c, of.hosts, bytes) + c.latency_s,
    std::max(send_s, c.chunk_bytes / c.host_to_gpu_bytes_per_s)};
}

// Members of the fullest host.
std::uint32_t sharing(const broadcast_case& of) { return (of.members + of.hosts - 1) / of.hosts; }

double single_s(
  const broadcast_costs& costs, const broadcast_case& of, const broadcast_scheme& scheme) {
  auto chunks = (of.bytes + scheme.chunk_bytes - 1) / scheme.chunk_bytes;
  auto c = costs;
  c.chunk_bytes = static_cast<double>(of.bytes) / static_cast<double>(chunks);
  if (of.memory == broadcast_memory::host)
    c.gpu_bytes_per_s = c.host_bytes_per_s;
  auto copy_s = shared_host_s(c, sharing(of), c.chunk_bytes);
  auto at = of.hosts > 1 ? arrivals_of(c, of, scheme) : arrivals{};
  return at.last_s + copy_s + static_cast<double>(chunks - 1) * std::max(copy_s - at.apart_s, 0.0);
}

} // namespace

double predicted_s(
  const broadcast_costs& costs, const broadcast_case& of, const broadcast_scheme& scheme) {
  MILLRACE_ASSERT(of.hosts > 0 && of.members >= of.hosts && of.bytes > 0 && of.roots > 0);
  MILLRACE_ASSERT(scheme.chunk_bytes > 0 && scheme.k >= 2);
  auto one_s = single_s(costs, of, scheme);
  if (of.roots == 1)
    return one_s;
  auto overlap = of.overlap.value_or(usual_overlap(scheme.algorithm, of.roots));
  return std::max(several_sources_s(one_s, of.roots, overlap), least_s(costs, of));
}

double least_s(const broadcast_costs& costs, const broadcast_case& of) {
  auto bytes = static_cast<double>(of.bytes);
  auto own_roots = of.roots / of.hosts; // of the host with the fewest
  auto receive_s = (of.roots - own_roots) * bytes / costs.host_bytes_per_s;
  return std::max(receive_s, shared_host_s(costs, sharing(of), of.roots * bytes));
}

double usual_overlap(broadcast_algorithm algorithm, std::uint32_t roots) {
  auto measured = 0.0;
  if (algorithm == broadcast_algorithm::ring)
    measured = 0.5;
  else if (algorithm == broadcast_algorithm::multicast)
    measured = 0.2;
  auto doublings = std::log2(static_cast<double>(roots) / measured_roots);
  auto overlap = measured + overlap_of_doubling * doublings;
  return roots == 1 ? 0 : std::clamp(overlap, 0.0, overlap_max);
}

broadcast_choice best_of(
  const broadcast_costs& costs, const broadcast_case& of, broadcast_algorithm algorithm) {
  auto is_tree = algorithm == broadcast_algorithm::knomial;
  auto k_most = is_tree ? std::clamp(of.hosts, 2u, k_max) : 2;
  broadcast_choice best{{}, INFINITY};
  for (auto k = 2u; k <= k_most; ++k)
    // Large chunks come first, so that of equal times the one with fewer sends is taken.
    for (auto chunk = of.bytes;; chunk = std::bit_floor(chunk - 1)) {
      broadcast_scheme scheme{algorithm, k, chunk};
      if (auto takes_s = predicted_s(costs, of, scheme); takes_s < best.predicted_s)
        best = {scheme, takes_s};
      if (chunk <= chunk_bytes_min)
        break;
    }
  return best;
}

broadcast_choice choose_broadcast(const broadcast_costs& costs, const broadcast_case& of) {
  auto best = best_of(costs, of, broadcast_algorithm::ring);
  for (auto algorithm : {broadcast_algorithm::knomial, broadcast_algorithm::multicast}) {
    if (algorithm == broadcast_algorithm::multicast && !of.multicast)
      continue;
    if (auto other = best_of(costs, of, algorithm); other.predicted_s < best.predicted_s)
      best = other;
  }
  return best;
}

} // namespace millrace::actors
