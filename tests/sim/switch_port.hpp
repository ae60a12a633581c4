// The port of a switch before one process: so many bytes a second, a bounded buffer, and what does
// not fit is lost and sent again. Used by the simulated network.
#pragma once

#include <millrace/core/ids.hpp>
#include <millrace/tests/sim/world.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

namespace millrace::sim {

struct port_options {
  double bytes_per_s = 1.25e9; // of every link
  std::uint64_t buffer_bytes = 512u << 10;
  nanoseconds way = std::chrono::microseconds{50};   // from a server to the switch, or on from it
  nanoseconds resend = std::chrono::milliseconds{1}; // after which a lost packet is sent again
};

/// Each server has a link of its own, on which its packets follow each other. Several servers send
/// at the same time.
class switch_port : public std::enable_shared_from_this<switch_port> {
public:
  static constexpr std::uint64_t packet_bytes = 4096;

  switch_port(world& w, process& to, const port_options& options)
    : world_(w), to_(to), options_(options) {}

  /// A server is asked for bytes, and sends them. `arrived` runs as the process when all are there.
  void send(const peer_id& from, std::uint64_t bytes, std::function<void()> arrived);

  std::uint64_t packets() const noexcept { return packets_; }
  std::uint64_t lost() const noexcept { return lost_; }

private:
  struct answer {
    std::uint64_t left = 0; // packets
    std::function<void()> arrived;
  };
  void at_switch(const std::shared_ptr<answer>& of);
  nanoseconds on_wire() const;

  world& world_;
  process& to_;
  const port_options options_;
  std::map<peer_id, nanoseconds> free_at_; // the servers' links
  nanoseconds port_free_at_{};
  std::uint64_t packets_ = 0;
  std::uint64_t lost_ = 0;
};

} // namespace millrace::sim
