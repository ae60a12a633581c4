// The parts of the transfer benchmark and what they share.
// Called by main.cpp in order.
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

/// Transfers of one size, several in flight, each with its own memory on both sides.
struct shape {
  transport::direction dir = transport::direction::read;
  std::uint64_t size_bytes = 0;
  std::uint32_t segments = 1; // of equal length, with gaps between them on both sides
  std::uint32_t owners = 1;
  bool same_memory = false; // all transfers use the same memory, as other benchmarks do

  std::uint32_t depth() const;
  /// Returns the number of places in memory, which are used in turn. For small transfers they are
  /// so many that no cache holds them.
  std::uint64_t places() const;
  std::string name() const; // read/1MiB
};

/// How much to measure.
struct extent {
  std::size_t rounds = 5;
  bool quick = false;
  bool emulated = false;                 // on devices that move only some ten MB per second
  std::vector<std::uint64_t> only_sizes; // empty: those of each section

  std::vector<std::uint64_t> latency_sizes() const;
  std::vector<std::uint64_t> sizes() const; // for the bandwidth
  std::vector<std::uint64_t> segmented_sizes() const;
  std::vector<std::uint32_t> segments() const;
  std::vector<std::uint32_t> peers() const;
  std::uint64_t places_bytes_max() const; // over all places of a transfer

  /// Returns true where one transfer takes seconds. It is then measured once, without peers.
  bool takes_long(std::uint64_t size_bytes) const;
  /// Returns the number of exchanges in one round of latencies.
  std::uint64_t exchanges(std::uint64_t size_bytes) const;
  /// Returns the number of transfers in one round of bandwidths.
  std::uint64_t transfers(const shape& how) const;
  /// Returns how long to measure a case whose result should be close to another one. The same work
  /// can take half as long again from one moment to the next.
  double close_seconds() const;

private:
  std::uint64_t round_bytes() const;
};

/// What the sections use in turn.
struct stage {
  extent how;
  report& out;
  scratch_directory& files;
  std::vector<const driver_kind*> drivers;
  std::optional<ucx_peer> ucx;
  std::optional<iperf_peer> iperf;
  std::optional<perftest_peer> perftest;
  warm_buffer& source; // for the floors
  warm_buffer& target;

  /// Makes a rig. If this machine lacks the driver, returns nothing and prints a line.
  std::unique_ptr<rig> rig_of(const driver_kind& kind, std::uint32_t owners = 1);
};

/// Returns "4KiB".
std::string bytes_name(std::uint64_t size_bytes);

/// Returns works of a shape between a rig's owners and this process.
std::vector<work> works_of(rig& r, const shape& how);

/// Returns "read" or "write".
std::string direction_name(transport::direction dir);
inline constexpr transport::direction directions[] = {
  transport::direction::read, transport::direction::write};

/// Measures one transfer at a time: p50 and p99.
void latency_section(stage& s);
/// Measures several sizes, each with several transfers in flight.
void sizes_section(stage& s);
/// Measures some sizes in 4 to 64 segments.
void segments_section(stage& s);
/// Measures one size with 1 to 16 peers.
void peers_section(stage& s);

} // namespace millrace::bench
