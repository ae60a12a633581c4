// Two sides of one driver: this process moves the bytes, owners in other processes have the memory.
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

/// Who moves the bytes, and who has the memory.
enum class side { mover, owner };

/// One driver of the benchmark.
struct driver_kind {
  std::string name;   // of the driver
  std::string column; // what cases are called
  bool one_process = false;
  /// It moves bytes by copying them within this machine's memory: plain copies are the floor, UCX's shared
  /// memory the peer.
  bool copies = false;
  /// It moves them over TCP connections: as many of iperf3 as it has with each owner are the peer.
  bool streams = false;
  /// It needs an RDMA device, see `rdma_ports`: perftest is the peer. Where this machine has none, it runs in the
  /// lab guest.
  bool rdma = false;
  /// Goals from 1 MiB on: part of the floor's speed, times as fast as the peer; the same from 256 KiB on.
  std::optional<double> floor_min = {}, peer_min = {}, peer_min_256kib = {};
  std::function<void(transport::fabric_options&)> adjust = {}; // may be empty

  /// How many times as fast as the peer it shall be with transfers of so many bytes.
  std::optional<double> peer_goal(std::uint64_t size_bytes) const;
};

/// A driver is one row here.
const std::vector<driver_kind>& driver_table();
/// Null when there is none of that name.
const driver_kind* find_driver(const std::string& column);

/// "streams=8": sets an option of the tcp driver for every rig made afterwards, on both sides. Sizes are in bytes.
/// Errors: `invalid_argument` naming those that can be set.
status set_tcp_option(const std::string& text);

transport::fabric_options options_of(const driver_kind& kind, side which = side::mover);

/// The RDMA port of each side: the last that is active here moves, the first has the memory. Nothing without any.
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
  /// Errors: `invalid_argument` when this build has no such driver; `unavailable` without the device it needs;
  /// whatever else keeps it from connecting.
  static result<std::unique_ptr<rig>> make(
    const driver_kind& kind, const std::string& directory, std::uint32_t owners);
  ~rig();

  /// Memory of an owner, filled with bytes; replaces what it exposed for that direction before.
  bulk_handle expose(std::uint32_t owner, transport::direction dir, std::uint64_t size_bytes);
  /// Registered memory here, at least so large; the same until more is asked for.
  std::span<std::byte> local(std::uint64_t size_bytes);

  /// Moves one and waits as callers of the library do; seconds.
  double move(const work& w);
  /// Moves them in turns, `count` in all, `depth` in flight, and waits for the oldest as callers do; seconds.
  /// Throws when one fails.
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
  // Where everything is one process.
  struct exposed;
  std::list<exposed> own_;
};

/// The program of an owner: `--owner DRIVER ADDRESS [TCP OPTION...]`.
int own(
  const std::string& column, const std::string& address, const std::vector<std::string>& tcp_texts);

} // namespace millrace::bench
