// What a node and a client both run on: actor system, I/O loop, fabric. Internal: needs CAF.
#pragma once

#include <millrace/actors/delivery.hpp>
#include <millrace/actors/node/node_messages.hpp>
#include <millrace/config/settings.hpp>
#include <millrace/net/channel/link.hpp>
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/net/socket/resolver.hpp>
#include <millrace/net/tls/tls_context.hpp>
#include <millrace/transport/fabric.hpp>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include <memory>
#include <mutex>
#include <vector>

namespace millrace::runtime {

/// Owns the threads. Stopped once, in an order in which nothing is left waiting: connections first, so that
/// every request ends; then the loop; then the actors; then the movers.
class engine {
public:
  static result<std::shared_ptr<engine>> start(const config::settings& settings);
  ~engine();
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  caf::actor_system& system() noexcept { return *system_; }
  const std::shared_ptr<net::io_loop>& loop() const noexcept { return loop_; }
  const std::shared_ptr<transport::fabric>& fabric() const noexcept { return fabric_; }
  const config::settings& settings() const noexcept { return settings_; }

  net::channel_options channel_options() const;
  /// How to connect to a node: at any of its addresses, in their order. Without a name, whoever answers there.
  net::link_options link_options(const actors::node_entry& node) const;

  /// The actor is ended when the engine stops.
  template <class Handle>
  Handle adopt(Handle actor) {
    std::lock_guard guard{mutex_};
    adopted_.push_back(caf::actor_cast<caf::strong_actor_ptr>(actor));
    return actor;
  }

  /// Ends every adopted actor: what waits for one of them gets `unavailable`.
  void end_actors();

private:
  explicit engine(const config::settings& settings);

  config::settings settings_;
  caf::actor_system_config caf_config_;
  std::unique_ptr<caf::actor_system> system_;
  std::shared_ptr<net::io_loop> loop_;
  std::shared_ptr<transport::fabric> fabric_;
  std::shared_ptr<const net::tls_context> tls_; // null without `security`
  std::shared_ptr<net::resolver> names_;
  std::mutex mutex_;
  std::vector<caf::strong_actor_ptr> adopted_;
};

/// Where the last owner of an engine lets go of it: stopping waits for threads, so a thread of the engine itself
/// (running a continuation that drops the last client) leaves it to another one.
void release(std::shared_ptr<engine> e);

} // namespace millrace::runtime
