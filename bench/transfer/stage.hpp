// The parts of the transfer benchmark and what they share. Called by main.cpp in order.
#pragma once

#include <millrace/bench/common/floors.hpp>
#include <millrace/bench/common/model_table.hpp>
#include <millrace/bench/common/peers.hpp>
#include <millrace/bench/common/report.hpp>
#include <millrace/bench/transfer/network_peers.hpp>
#include <millrace/bench/transfer/rig.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace::bench {

/// Transfers of one size, several in flight, each with memory of its own on both sides.
struct shape {
  transport::direction dir = transport::direction::read;
  std::uint64_t size_bytes = 0;
  std::uint32_t segments = 1; // equal ones, with gaps between them on both sides
  std::uint32_t owners = 1;
  bool same_memory = false; // all in flight use the same memory, as the benchmarks of others do

  std::uint32_t depth() const;
  /// Places in memory, used in turn: of small transfers so many that no cache holds them.
  std::uint64_t places() const;
  std::string name() const; // read/1MiB
};

/// How much is measured.
struct extent {
  std::size_t rounds = 5;
  bool quick = false;
  bool emulated = false;                 // on devices that move some ten MB a second
  std::vector<std::uint64_t> only_sizes; // empty: those of each section

  std::vector<std::uint64_t> latency_sizes() const;
  std::vector<std::uint64_t> sizes() const; // of the bandwidth
  std::vector<std::uint64_t> segmented_sizes() const;
  std::vector<std::uint32_t> segments() const;
  std::vector<std::uint32_t> peers() const;
  std::uint64_t places_bytes_max() const; // of all places of a transfer

  /// Where one transfer takes seconds it is measured once, without peers.
  bool takes_long(std::uint64_t size_bytes) const;
  /// Of one round of latencies.
  std::uint64_t exchanges(std::uint64_t size_bytes) const;
  /// Of one round of bandwidths.
  std::uint64_t transfers(const shape& how) const;
  /// How long what shall be nearly as fast as something else is measured: the same work takes from one moment to the next
  /// half as long again.
  double close_seconds() const;

private:
  std::uint64_t round_bytes() const;
};

/// Everything that sections use in turns.
struct stage {
  extent how;
  report& out;
  scratch_directory& files;
  std::vector<const driver_kind*> drivers;
  std::optional<ucx_peer> ucx;
  std::optional<iperf_peer> iperf;
  std::optional<perftest_peer> perftest;
  warm_buffer& source; // for floors
  warm_buffer& target;

  /// Nothing, and a line on standard output, where the driver cannot be had.
  std::unique_ptr<rig> rig_of(const driver_kind& kind, std::uint32_t owners = 1);
};

/// "4KiB".
std::string bytes_name(std::uint64_t size_bytes);

/// Works of a shape between a rig's owners and memory here.
std::vector<work> works_of(rig& r, const shape& how);

/// "read".
std::string direction_name(transport::direction dir);
inline constexpr transport::direction directions[] = {
  transport::direction::read, transport::direction::write};

/// One transfer at a time: p50 and p99.
void latency_section(stage& s);
/// Sizes, each with several in flight.
void sizes_section(stage& s);
/// Some sizes in 4 to 64 segments.
void segments_section(stage& s);
/// One size with 1 to 16 peers.
void peers_section(stage& s);

} // namespace millrace::bench
