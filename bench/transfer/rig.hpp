// The two sides of one driver: this process moves the bytes, owners in other processes have the
// memory.
// Used by the sections of bench_transfer.
#pragma once

#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/measure.hpp>
#include <millrace/core/future.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/verbs/verbs_state.hpp>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace::bench {

/// The process that moves the bytes, and the process that has the memory.
enum class side { mover, owner };

/// One driver of the benchmark.
struct driver_kind {
  std::string name;   // the name of the driver
  std::string column; // the name in cases
  bool one_process = false;
  /// It copies within this machine's memory. The floor is plain copies, and the peer is UCX over
  /// shared memory.
  bool copies = false;
  /// It uses TCP connections. The peer is iperf3 with as many streams as the driver has with each
  /// owner.
  bool streams = false;
  /// It needs an RDMA device, see `rdma_ports`. The peer is perftest. Where this machine has none,
  /// it runs in the lab guest.
  bool rdma = false;
  /// The goals from 1 MiB on: a part of the floor's speed, and how many times as fast as the peer;
  /// the last one from 256 KiB on.
  std::optional<double> floor_min = {}, peer_min = {}, peer_min_256kib = {};
  std::function<void(transport::fabric_options&)> adjust = {}; // may be empty

  /// Returns the goal for transfers of this size: how many times as fast as the peer.
  std::optional<double> peer_goal(std::uint64_t size_bytes) const;
};

/// Returns the drivers, one entry each.
const std::vector<driver_kind>& driver_table();
/// Returns null when there is none with that name.
const driver_kind* find_driver(const std::string& column);

/// Sets an option of the tcp driver, "streams=8", for every rig made afterwards, on both sides.
/// Sizes are in bytes.
/// Errors:  `invalid_argument` naming the options that can be set.
status set_tcp_option(const std::string& text);

transport::fabric_options options_of(const driver_kind& kind, side which = side::mover);

/// The RDMA port of each side: the last active port of this machine is the mover's, the first is
/// the owner's. Nothing without ports.
struct port_pair {
  transport::verbs_port mover, owner;
};
std::optional<port_pair> rdma_ports();

/// One transfer to be repeated.
struct work {
  transport::direction dir = transport::direction::read;
  bulk_handle remote;
  std::vector<transport::copy_op> ops;
};

class rig {
public:
  /// Connects a driver with its owners.
  /// Errors:  `invalid_argument` when this build has no such driver; `unavailable` without the
  ///          device that it needs; any other reason why it cannot connect.
  static result<std::unique_ptr<rig>> make(
    const driver_kind& kind, const std::string& directory, std::uint32_t owners);
  ~rig();

  /// Exposes memory of an owner, filled with bytes. Replaces what it exposed for that direction
  /// before.
  bulk_handle expose(std::uint32_t owner, transport::direction dir, std::uint64_t size_bytes);
  /// Returns registered memory of this process, at least this large. It stays the same until more
  /// is requested.
  std::span<std::byte> local(std::uint64_t size_bytes);

  /// Moves once, and waits as callers of the library do. Returns the seconds.
  double move(const work& w);
  /// Moves the works in turn, `count` in all, `depth` in flight, and waits for the oldest as
  /// callers do. Returns the seconds. Throws when one fails.
  double stream(const std::vector<work>& works, std::uint64_t count, std::uint32_t depth);

private:
  rig(const driver_kind& kind, std::shared_ptr<net::io_loop> loop);
  void start_owners(const std::string& directory, std::uint32_t owners);
  future<transport::transfer_report> submit(const work& w);

  const driver_kind kind_;
  std::shared_ptr<net::io_loop> loop_;
  std::shared_ptr<transport::fabric> fabric_;
  std::shared_ptr<memory_source> memory_;
  memory_block block_;
  std::shared_ptr<net::listener> listener_;
  std::vector<child> owners_;
  // The owners' memory where everything is one process.
  struct exposed;
  std::list<exposed> own_;
};

/// Runs the program of an owner: `--owner DRIVER ADDRESS [TCP OPTION...]`.
int own(
  const std::string& column, const std::string& address, const std::vector<std::string>& tcp_texts);

} // namespace millrace::bench
