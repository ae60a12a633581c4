// The node's own actor. It answers the directory, and gathers the status of everything that the
// node runs.
#pragma once

#include <millrace/actors/node/node_messages.hpp>
#include <millrace/actors/wire/service_table.hpp>

#include <functional>
#include <vector>

namespace millrace::actors {

using node_actor = actor_of<node_service>;

struct node_actor_deps {
  directory who_is_where;
  std::function<node_status()> own_state; // without the providers; any thread
  /// The actors that have a part of a provider's status. Those of one provider follow each other.
  std::vector<service_table::reporting> providers;
};

node_actor spawn_node_actor(caf::actor_system& system, node_actor_deps deps);

} // namespace millrace::actors
