// The engine below nodes and clients: the actor system, the I/O loop and the fabric.
// Internal, used by `node` and `client`; needs CAF.
#pragma once

#include <millrace/actors/delivery.hpp>
#include <millrace/actors/node/node_messages.hpp>
#include <millrace/config/settings.hpp>
#include <millrace/core/process_mark.hpp>
#include <millrace/net/channel/link.hpp>
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/net/socket/resolver.hpp>
#include <millrace/net/tls/context.hpp>
#include <millrace/runtime/node/platform.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace millrace::runtime {

/// What the process is: others connect to a node, and a client listens nowhere.
enum class engine_role : std::uint8_t { node, client };

/// Owns the threads. It stops once, in an order that leaves no request waiting: connections first,
/// so that every request ends; then the loop, the actors and the movers.
class engine {
public:
  static result<std::shared_ptr<engine>> start(const config::settings& settings, engine_role role);
  ~engine();
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  caf::actor_system& system() noexcept { return *system_; }
  const std::shared_ptr<net::io_loop>& loop() const noexcept { return loop_; }
  const std::shared_ptr<transport::fabric>& fabric() const noexcept { return fabric_; }
  const config::settings& settings() const noexcept { return settings_; }
  /// Returns the process that has the threads. In a forked child nothing may be asked of them.
  const process_mark& made_in() const noexcept { return made_in_; }

  net::network& network() const noexcept { return *network_; }
  net::channel_options channel_options() const;
  /// Says how to connect to a node: at any of its addresses, in their order. Without a name, any
  /// node that answers there is accepted.
  net::link_options link_options(const node_entry& node) const;

  /// Takes over an actor. The actor ends with the others; at once if those have ended, since an
  /// actor may be started anew while its node stops.
  template <class Handle>
  Handle adopt(Handle actor) {
    keep_or_end(caf::actor_cast<caf::strong_actor_ptr>(actor));
    return actor;
  }

  /// Ends every adopted actor. Requests that wait for one of them get `unavailable`.
  void end_actors();

private:
  explicit engine(const config::settings& settings);

  void keep_or_end(const caf::strong_actor_ptr& actor);

  const process_mark made_in_;
  config::settings settings_;
  platform& platform_;
  caf::actor_system_config caf_config_;
  std::unique_ptr<caf::actor_system> system_;
  std::shared_ptr<net::io_loop> loop_;
  std::shared_ptr<net::network> network_;
  std::shared_ptr<transport::fabric> fabric_;
  std::shared_ptr<const net::tls::context> tls_; // null without `security`
  std::shared_ptr<net::resolver> names_;
  std::vector<std::uint32_t> trusted_uids_;
  std::mutex mutex_;
  std::vector<caf::strong_actor_ptr> adopted_;
  bool actors_ended_ = false;
};

/// Releases the last reference to an engine. Stopping waits for the engine's threads. If one of
/// them makes this call (a continuation dropped the last client), another thread stops the engine.
void release(std::shared_ptr<engine> e);

} // namespace millrace::runtime
