// How long a broadcast takes, as equations: those of the broadcast paper, and terms of ours.
// Pure: knows no network. Used by what chooses an algorithm, and by `millrace predict`.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace millrace::actors {

/// What a cluster costs: the symbols of Table 1, with SI units, and constants that the paper lacks.
///
/// Defaults are those of section 8 where it prints them. Two of its units cannot be meant:
/// - "B_H2D ≈ 8 Gbps" is 1 GB/s. Section 7.2 measures 6 GB/s through that copy, so 8 GB/s is meant.
/// - t_o(n) of equation 10 is in seconds by Table 1. Then the 512 packets of 2 MiB would take more
///   than a minute to 16 hosts. Microseconds are meant.
/// With both, equation 8 gives 6.7 GB/s for 2 MiB to 16 hosts; section 7.2 measures about 6 GB/s.
/// Source: the broadcast paper, Table 1 and section 8.
struct broadcast_costs {
  double setup_s = 2e-6;                // t_s of a chunk; the paper neglects it
  double packet_setup_s = 0;            // t_s of a multicast packet; the paper has one t_s for both
  double multicast_a_per_s = 17.5e6;    // a of equation 10: 15 to 20 for each microsecond
  double chunk_bytes = 512 * 1024;      // C
  double packet_bytes = 4096;           // U
  double host_bytes_per_s = 12.5e9;     // B_H
  double gpu_bytes_per_s = 9e9;         // B_G; not printed: the highest rate of a ring, section 7.2
  double host_to_gpu_bytes_per_s = 8e9; // B_H2D
  double latency_s = 0;                 // ours: from the sender's port to the receiver's memory
  double host_copy_bytes_per_s = 10e9;  // ours: what all members of a host copy together

  bool operator==(const broadcast_costs&) const = default;
};

/// One constant of `broadcast_costs`, for files and for listings.
struct broadcast_constant {
  std::string_view name;
  std::string_view symbol; // of the paper; empty: ours
  double broadcast_costs::*value = nullptr;
  double least = 0, most = 0;
  std::string_view meaning;
};

/// Returns all constants, in the order of the struct.
std::span<const broadcast_constant> broadcast_constants();

// Every function below returns seconds. `members` is n, `sources` is m, `bytes` is M. Numbers of
// chunks and packets are M/C and M/U as printed: a part of a chunk counts as a part.
// Threads: pure; any thread.

/// A ring that passes on the whole message.
/// Source: equation 1, section 3.1.1.
double ring_s(const broadcast_costs& costs, std::uint64_t members, double bytes);
/// A ring that passes on chunk after chunk. With one port for each host that is exact, without
/// `latency_s`.
/// Source: equation 2, section 3.1.1.
double ring_pipelined_s(const broadcast_costs& costs, std::uint64_t members, double bytes);
/// A ring over memory of the host, to which the sender copies from its GPU first. The copies of the
/// receivers to their GPUs are left out: they are free only if devices write to memory of GPUs.
/// Source: equation 3, section 3.1.1.
double ring_staged_s(const broadcast_costs& costs, std::uint64_t members, double bytes);

/// A k-nomial tree that passes on the whole message.
///
/// Printed is ⌈log_k n⌉ steps. In each of them a parent sends to k - 1 children, one after the
/// other, so that is right for k = 2 only. Section 8 admits it: these sends "cannot be issued
/// simultaneously as the theoretical models expect".
/// Source: equation 4, section 3.1.2, as printed.
double knomial_s(const broadcast_costs& costs, std::uint64_t members, unsigned k, double bytes);
/// The same over memory of the host; with what equations 3 and 4 leave out.
/// Source: equation 5, section 3.1.2, as printed.
double knomial_staged_s(
  const broadcast_costs& costs, std::uint64_t members, unsigned k, double bytes);
/// A k-nomial tree that passes on chunk after chunk, with ⌈log_k n⌉ steps for each.
///
/// The text below the equation gives the sender so many steps for one chunk. But the root of a
/// k-nomial tree has up to (k - 1) × ⌈log_k n⌉ children, and sends each chunk to all of them. The
/// two agree for k = 2; for larger k the printed time is too short, up to (k - 1) times. Ours is
/// `knomial_one_port_s`.
/// Source: equation 6, section 3.1.2, as printed.
double knomial_pipelined_s(
  const broadcast_costs& costs, std::uint64_t members, unsigned k, double bytes);
/// The same, with as many steps for a chunk as the root has children.
///
/// This is exact for one port for each host: a parent serves the largest subtree first, so no
/// subtree ends after the root's last child, and no child has more children than the root.
/// Source: ours, in place of equation 6.
double knomial_one_port_s(
  const broadcast_costs& costs, std::uint64_t members, unsigned k, double bytes);

/// What one multicast packet costs beyond its bytes, for n receivers: ln(n) / a.
///
/// Section 8 compares it with ⌈ln(n) / ln(k)⌉ and concludes that k-nomial trees win for ln(k) > a.
/// That compares a time with a number of steps; we compare whole times.
/// Source: equation 10, section 8. For its unit see `broadcast_costs`.
double multicast_overhead_s(const broadcast_costs& costs, std::uint64_t members);
/// A multicast of packets that the device reads from the memory of a GPU.
/// Source: equation 7, section 3.1.3.
double multicast_s(const broadcast_costs& costs, std::uint64_t members, double bytes);
/// A multicast of packets of the host's memory, to which chunks are copied from a GPU meanwhile.
///
/// The copy of the first chunk is the only one that counts. That is right if copying a chunk takes
/// no longer than sending it; where it takes longer, `multicast_copied_s` differs.
/// Source: equation 8, section 5.2.
double multicast_staged_s(const broadcast_costs& costs, std::uint64_t members, double bytes);
/// The same, in two stages of which the slower one sets the pace.
/// Source: ours, in place of equation 8; equal where its assumption holds.
double multicast_copied_s(const broadcast_costs& costs, std::uint64_t members, double bytes);
/// A multicast of packets of the host's memory that were there before.
/// Source: ours: equation 8 without its copy.
double multicast_host_s(const broadcast_costs& costs, std::uint64_t members, double bytes);

/// Several broadcasts of equal size from different sources, of which a part overlaps.
///
/// Nothing in it holds an overlap down to what receivers can take: see `least_s`.
/// Source: equation 9, section 5.2, for any single broadcast.
double several_sources_s(double single_s, std::uint64_t sources, double overlap);
/// Returns the overlap (OP) that two measured times show: the inverse of `several_sources_s`.
/// Source: equation 11, section 8.
double overlap_of(double single_s, double several_s, std::uint64_t sources);

/// Members that share the cores and the memory of one host: all but one copy every byte.
///
/// Equations 1 to 9 give each member a memory and a port of its own. On one host the members copy
/// at the rate of the machine together, whatever the algorithm.
/// Source: ours.
double shared_host_s(const broadcast_costs& costs, std::uint64_t members, double bytes);

/// Returns ⌈log_k n⌉: how often k must be multiplied until it is n at least.
unsigned knomial_rounds(std::uint64_t members, unsigned k);
/// Returns the number of the root's children.
std::uint64_t knomial_degree(std::uint64_t members, unsigned k);
/// Returns the number of sends from the root to the member that is farthest from it.
unsigned knomial_depth(std::uint64_t members, unsigned k);

} // namespace millrace::actors
