// What an engine stands on: threads for actors, the I/O loop, the network, the fabric. Simulated
// clusters bring their own. Internal, used by `engine`; needs CAF.
#pragma once

#include <millrace/net/channel/network.hpp>
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/transport/fabric.hpp>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include <memory>

namespace millrace::runtime {

class platform {
public:
  virtual ~platform() = default;

  /// Chooses what runs actors and their timers.
  virtual caf::actor_system_config make_caf_config() = 0;
  virtual void started(caf::actor_system& system) = 0;
  virtual void ending(caf::actor_system& system) = 0;

  virtual result<std::shared_ptr<net::io_loop>> make_loop(const net::io_loop_options& options) = 0;
  virtual std::shared_ptr<net::network> network() = 0;
  virtual result<std::shared_ptr<transport::fabric>> make_fabric(
    const transport::fabric_options& options, const std::shared_ptr<net::io_loop>& loop) = 0;

  /// That of the operating system, or of the simulated machine.
  static platform& of_this_process();
};

#if defined(MILLRACE_KILL_POINTS)
/// Set by a test that simulates, see `simulated_machine`.
inline constinit platform* simulated_platform = nullptr;
#endif

} // namespace millrace::runtime
