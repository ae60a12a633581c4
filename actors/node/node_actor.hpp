// The node's own actor: answers who is where, and gathers the state of everything the node runs.
#pragma once

#include <millrace/actors/vocabulary.hpp>

#include <functional>
#include <vector>

namespace millrace::actors {

struct node_actor_deps {
  directory who_is_where;
  std::function<node_status()> own_state; // without the providers; any thread
  struct provider {
    tensor_store_actor store;             // of those that keep models
    checkpoint_manager_actor checkpoints; // of those that keep some
  };
  std::vector<provider> providers;
};

node_actor spawn_node_actor(caf::actor_system& system, node_actor_deps deps);

} // namespace millrace::actors
