// The node's own actor: it answers the directory, gathers the status of all that the node runs, and
// starts failed actors anew. Asked by sessions and local clients.
#pragma once

#include <millrace/actors/node/node_messages.hpp>
#include <millrace/actors/provider_status.hpp>
#include <millrace/actors/vocabulary.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace millrace::actors {

using node_actor = actor_of<node_service>;

/// An actor that has a part of its provider's status.
using reporting_actor =
  caf::typed_actor<caf::replies_to<provider_status_request>::with<provider_status>>;

/// An actor that runs, and what expires when nothing of its work is under way any more.
struct started_actor {
  reporting_actor actor;
  std::weak_ptr<void> in_use = {};
};

/// One actor of a provider, which the node watches.
struct supervised_actor {
  std::string target; // the provider's name
  started_actor running;
  /// Starts another one, to which requests go from then on. Empty: it is not started anew.
  std::function<started_actor()> start = nullptr;
};

/// An actor of the node itself, which serves all providers. The node watches it, too.
struct supervised_part {
  std::string name; // "the staging manager"
  caf::actor_addr running;
  /// Starts another one, which goes on where the former one ended.
  std::function<caf::actor_addr()> start;
  /// Called when it is not started anew.
  std::function<void(const status& why)> take_down;
};

/// How often the actors of one provider, or one part of the node, are started anew.
struct restart_policy {
  std::uint32_t restarts_max = 5; // within `period`; then the provider, or the part, is down
  std::chrono::milliseconds period = std::chrono::minutes{10};
  /// How long an actor's work may go on after the actor has ended.
  std::chrono::milliseconds work_max = std::chrono::seconds{60};
};

struct node_actor_deps {
  directory who_is_where;
  std::function<node_status()> own_state; // without the providers; any thread
  /// Those of one provider follow each other.
  std::vector<supervised_actor> actors;
  std::vector<supervised_part> parts = {};
  restart_policy restarts = {};
  /// Called when a provider's actor is not started anew: its requests are refused from then on.
  std::function<void(const std::string& target, const status& why)> take_down = nullptr;
};

node_actor spawn_node_actor(caf::actor_system& system, node_actor_deps deps);

} // namespace millrace::actors
