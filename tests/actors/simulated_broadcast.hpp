// Broadcasts in simulated time: hosts with one port to send and one to receive, and links with a
// latency. Used by the tests of the cost model.
#pragma once

#include <millrace/actors/broadcast/broadcast_choice.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <queue>
#include <tuple>
#include <vector>

namespace millrace::testing {

struct broadcast_outcome {
  double seconds = 0; // until the last member had the last chunk
  bool whole = true;  // every member had every chunk once, in order
};

/// Runs broadcasts of equal size at once, each by a plan of its own over the same members.
///
/// A leader forwards a chunk as soon as it has it, to one host at a time. Chunks of several
/// broadcasts take turns at a port. The members of a host copy a chunk together when their leader
/// has it, at the rate of the host. Switches have room for what waits for a port.
class simulated_broadcast {
public:
  simulated_broadcast(
    const actors::broadcast_costs& costs, std::vector<actors::broadcast_plan> plans,
    std::uint64_t bytes, std::uint64_t chunks,
    actors::broadcast_memory memory = actors::broadcast_memory::host);

  broadcast_outcome run();

private:
  struct send {
    std::size_t plan;
    std::uint32_t from;
    std::uint32_t to; // of a multicast the first one
    std::uint64_t chunk;
  };
  struct event {
    double at;
    std::uint64_t order;
    std::size_t plan;
    std::uint32_t member; // has the chunk; if `frees`, the port of its host is free
    std::uint64_t chunk;
    bool frees;
    bool operator>(const event& o) const { return std::tie(at, order) > std::tie(o.at, o.order); }
  };
  struct host {
    std::vector<std::deque<send>> waiting; // by plan
    std::size_t turn = 0;
    bool sends = false;
    double receives_until = 0;
    double copies_until = 0;
  };

  void add(double at, std::size_t plan, std::uint32_t member, std::uint64_t chunk, bool frees);
  void begin(std::size_t plan);
  void arrive(const event& e);
  void copy_within_host(const event& e, const actors::broadcast_role& role);
  void send_next(std::uint32_t of_host);
  void deliver(std::size_t plan, std::uint32_t to, std::uint64_t chunk, double at);
  double send_s(const actors::broadcast_plan& plan) const;

  const actors::broadcast_costs costs_;
  const std::vector<actors::broadcast_plan> plans_;
  const std::uint64_t chunks_;
  const double chunk_bytes_;
  const actors::broadcast_memory memory_;
  std::map<std::uint32_t, host> hosts_;
  std::vector<std::vector<std::uint64_t>> had_; // chunks, by plan and member
  std::priority_queue<event, std::vector<event>, std::greater<>> events_;
  std::uint64_t order_ = 0;
  double now_ = 0;
  broadcast_outcome outcome_;
};

} // namespace millrace::testing
