// Proxies: actors elsewhere, with the same typed interface as here. Clients spawn them.
#pragma once

#include <millrace/actors/vocabulary.hpp>
#include <millrace/actors/wire/remote_node.hpp>

#include <memory>
#include <string>

namespace millrace::actors {

/// A provider of another process. Its errors name the address; a caller tells it from a local store only by the
/// latency. `timeout_ms` bounds requests that carry no time of their own.
tensor_store_actor spawn_remote_store(
  caf::actor_system& system, std::shared_ptr<remote_node> node, std::string provider,
  std::uint32_t timeout_ms);

/// The checkpoints of a provider of another process.
checkpoint_manager_actor spawn_remote_checkpoints(
  caf::actor_system& system, std::shared_ptr<remote_node> node, std::string provider,
  std::uint32_t timeout_ms);

/// The node actor of another process.
node_actor spawn_remote_node_actor(
  caf::actor_system& system, std::shared_ptr<remote_node> node, std::uint32_t timeout_ms);

} // namespace millrace::actors
