// The network between the processes of a world, and what nodes and clients stand on in it: channels
// that break, stall and delay, and a driver that moves bytes op by op. Used by scenarios.
#pragma once

#include <millrace/net/channel/network.hpp>
#include <millrace/runtime/node/platform.hpp>
#include <millrace/tests/sim/switch_port.hpp>
#include <millrace/tests/sim/world.hpp>
#include <millrace/transport/copy/mover_pool.hpp>
#include <millrace/transport/driver.hpp>

#include <map>
#include <memory>
#include <set>
#include <string>

namespace millrace::sim {

class connection;

/// Two processes are cut off from one another until `heal_all`. Frames wait; a channel that is cut
/// off for longer than `silence_max` ends at both sides, as heartbeats would end it.
class simulated_network final : public net::network,
                                public runtime::platform,
                                public std::enable_shared_from_this<simulated_network> {
public:
  static constexpr nanoseconds silence_max = std::chrono::seconds{10};

  explicit simulated_network(world& w);
  ~simulated_network() override;

  void cut(process& a, process& b);
  /// A process stands still until `go_on` or `heal_all`: nothing that it sends or should receive
  /// arrives, and its channels stay open, as when others answer their heartbeats for it.
  void stand_still(process& p) { still_.insert(p.number); }
  void go_on(process& p);
  void heal_all();
  /// A process that is on another host than all others: it maps no memory of theirs. Call it before
  /// the process connects.
  void put_elsewhere(process& p) { elsewhere_.insert(p.number); }
  /// From now on what a process reads from others comes through a port of a switch.
  std::shared_ptr<switch_port> bound_port(process& p, const port_options& options);
  /// Returns null for a process without one.
  std::shared_ptr<switch_port> port_of(const process& p) const;
  /// The longest time that a frame takes.
  nanoseconds latency_max = std::chrono::microseconds{300};
  /// So many transfers of a thousand never move, until the channel to the peer ends.
  std::uint64_t stalls_per_mille = 0;

  bool is_cut(const process& a, const process& b) const;
  nanoseconds latency() { return nanoseconds{world_.random.between(5'000, latency_max.count())}; }
  world& in() noexcept { return world_; }
  std::size_t connections() const noexcept { return open_.size(); }
  std::uint64_t frames() const noexcept { return frames_; }
  void count_frame() noexcept { ++frames_; }

  // net::network:
  void connect(
    const std::shared_ptr<net::io_loop>& loop, const std::string& address,
    const net::channel_options& options, std::shared_ptr<net::channel_handler> handler,
    completion<std::shared_ptr<net::channel>> done) override;
  result<std::shared_ptr<net::listener>> listen(
    const std::shared_ptr<net::io_loop>& loop, const net::listener_options& where,
    const net::channel_options& options, net::accept_function accept) override;

  // runtime::platform:
  caf::actor_system_config make_caf_config() override;
  void started(caf::actor_system& system) override { world_.add_system(system); }
  void ending(caf::actor_system& system) override { world_.remove_system(system); }
  result<std::shared_ptr<net::io_loop>> make_loop(const net::io_loop_options&) override;
  std::shared_ptr<net::network> network() override { return shared_from_this(); }
  result<std::shared_ptr<transport::fabric>> make_fabric(
    const transport::fabric_options& options, const std::shared_ptr<net::io_loop>& loop) override;

private:
  friend class connection;
  struct listening {
    std::weak_ptr<simulated_loop> loop;
    process* by;
    std::string name;
    net::accept_function accept;
  };
  class listener;

  result<std::shared_ptr<connection>> shake_hands(
    const std::shared_ptr<simulated_loop>& from, const std::string& address,
    const net::channel_options& options, std::shared_ptr<net::channel_handler> handler);
  void died(process& p);
  void end_channels_of(const process& p);

  world& world_;
  std::map<std::string, std::shared_ptr<listening>> listening_; // by address
  std::set<std::pair<std::uint32_t, std::uint32_t>> cuts_;
  std::set<std::uint32_t> still_;                               // processes
  std::set<std::uint32_t> elsewhere_;                           // processes
  std::map<std::uint32_t, std::shared_ptr<switch_port>> ports_; // by process
  std::map<std::uint64_t, std::shared_ptr<connection>> open_;
  std::uint64_t last_connection_ = 0;
  std::uint64_t frames_ = 0;
};

} // namespace millrace::sim
