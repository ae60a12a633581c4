// The equations, in the order of the header.
#include <millrace/actors/broadcast/cost_model.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace millrace::actors {

namespace {

using costs_of = broadcast_costs;

constexpr double time_max = 1e6, rate_max = 1e15; // far from where products overflow

constexpr std::array<broadcast_constant, 10> constants = {{
  {"setup_s", "t_s", &costs_of::setup_s, 0, time_max, "time to begin sending a chunk"},
  {"packet_setup_s", "t_s", &costs_of::packet_setup_s, 0, time_max,
   "time to begin sending a multicast packet"},
  {"multicast_a_per_s", "a", &costs_of::multicast_a_per_s, 1, rate_max,
   "a multicast packet to n hosts takes ln(n) / a longer"},
  {"chunk_bytes", "C", &costs_of::chunk_bytes, 1, rate_max,
   "chunk in which a GPU's bytes are copied for multicast"},
  {"packet_bytes", "U", &costs_of::packet_bytes, 1, rate_max, "largest multicast packet"},
  {"host_bytes_per_s", "B_H", &costs_of::host_bytes_per_s, 1, rate_max,
   "rate at which a device sends from the host's memory"},
  {"gpu_bytes_per_s", "B_G", &costs_of::gpu_bytes_per_s, 1, rate_max,
   "rate at which a device sends from a GPU's memory"},
  {"host_to_gpu_bytes_per_s", "B_H2D", &costs_of::host_to_gpu_bytes_per_s, 1, rate_max,
   "rate of copies between a host and its GPU"},
  {"latency_s", "", &costs_of::latency_s, 0, time_max,
   "time from the sender's port to the receiver's memory"},
  {"host_copy_bytes_per_s", "", &costs_of::host_copy_bytes_per_s, 1, rate_max,
   "rate at which all members of a host copy together"},
}};

double gpu_step_s(const broadcast_costs& c, double bytes) {
  return c.setup_s + bytes / c.gpu_bytes_per_s;
}

double host_step_s(const broadcast_costs& c, double bytes) {
  return c.setup_s + bytes / c.host_bytes_per_s;
}

double hops(std::uint64_t members) { return static_cast<double>(members) - 1; }

// Sends packets, each of which takes so long to read.
double packets_s(const broadcast_costs& c, std::uint64_t members, double bytes, double per_s) {
  auto packet_s = c.packet_setup_s + multicast_overhead_s(c, members) + c.packet_bytes / per_s;
  return bytes / c.packet_bytes * packet_s;
}

} // namespace

std::span<const broadcast_constant> broadcast_constants() { return constants; }

double ring_s(const broadcast_costs& c, std::uint64_t members, double bytes) {
  return hops(members) * gpu_step_s(c, bytes);
}

double ring_pipelined_s(const broadcast_costs& c, std::uint64_t members, double bytes) {
  return (bytes / c.chunk_bytes + hops(members) - 1) * gpu_step_s(c, c.chunk_bytes);
}

double ring_staged_s(const broadcast_costs& c, std::uint64_t members, double bytes) {
  return bytes / c.host_to_gpu_bytes_per_s + hops(members) * host_step_s(c, bytes);
}

double knomial_s(const broadcast_costs& c, std::uint64_t members, unsigned k, double bytes) {
  return knomial_rounds(members, k) * gpu_step_s(c, bytes);
}

double knomial_staged_s(const broadcast_costs& c, std::uint64_t members, unsigned k, double bytes) {
  return bytes / c.host_to_gpu_bytes_per_s + knomial_rounds(members, k) * host_step_s(c, bytes);
}

double knomial_pipelined_s(
  const broadcast_costs& c, std::uint64_t members, unsigned k, double bytes) {
  return bytes / c.chunk_bytes * knomial_rounds(members, k) * gpu_step_s(c, c.chunk_bytes);
}

double knomial_one_port_s(
  const broadcast_costs& c, std::uint64_t members, unsigned k, double bytes) {
  auto steps = bytes / c.chunk_bytes * static_cast<double>(knomial_degree(members, k));
  return steps * gpu_step_s(c, c.chunk_bytes);
}

double multicast_overhead_s(const broadcast_costs& c, std::uint64_t members) {
  return std::log(static_cast<double>(members)) / c.multicast_a_per_s;
}

double multicast_s(const broadcast_costs& c, std::uint64_t members, double bytes) {
  return packets_s(c, members, bytes, c.gpu_bytes_per_s);
}

double multicast_staged_s(const broadcast_costs& c, std::uint64_t members, double bytes) {
  return c.chunk_bytes / c.host_to_gpu_bytes_per_s + multicast_host_s(c, members, bytes);
}

double multicast_copied_s(const broadcast_costs& c, std::uint64_t members, double bytes) {
  auto copy_s = c.chunk_bytes / c.host_to_gpu_bytes_per_s;
  auto send_s = multicast_host_s(c, members, c.chunk_bytes);
  return copy_s + (bytes / c.chunk_bytes - 1) * std::max(copy_s, send_s) + send_s;
}

double multicast_host_s(const broadcast_costs& c, std::uint64_t members, double bytes) {
  return packets_s(c, members, bytes, c.host_bytes_per_s);
}

double several_sources_s(double single_s, std::uint64_t sources, double overlap) {
  return (1 - overlap) * static_cast<double>(sources) * single_s;
}

double overlap_of(double single_s, double several_s, std::uint64_t sources) {
  auto in_turn_s = static_cast<double>(sources) * single_s;
  return (in_turn_s - several_s) / in_turn_s;
}

double shared_host_s(const broadcast_costs& c, std::uint64_t members, double bytes) {
  return hops(members) * bytes / c.host_copy_bytes_per_s;
}

unsigned knomial_rounds(std::uint64_t members, unsigned k) {
  unsigned rounds = 0;
  for (auto left = members; left > 1; left = (left - 1) / k + 1) // products could overflow
    ++rounds;
  return rounds;
}

// Child number j of level l is the member j × k^l, if there is one.
std::uint64_t knomial_degree(std::uint64_t members, unsigned k) {
  std::uint64_t children = 0;
  for (auto last = members - 1; last > 0; last /= k)
    children += std::min<std::uint64_t>(last, k - 1);
  return children;
}

// A member is as far from the root as it has digits to the base k that are not zero. The farthest
// one ends in the digit 1, and what stands before it is as far as it can be.
unsigned knomial_depth(std::uint64_t members, unsigned k) {
  unsigned depth = 0;
  for (auto left = members; left > 1; left = (left - 2) / k + 1)
    ++depth;
  return depth;
}

} // namespace millrace::actors
