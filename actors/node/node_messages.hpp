// The messages about nodes: the directory and the status. Sent by clients; they hold descriptors
// only.
#pragma once

#include <millrace/actors/service.hpp>
#include <millrace/core/cluster_entries.hpp>
#include <millrace/core/inspect.hpp>
#include <millrace/core/node_status.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::actors {

struct directory_request {
  std::uint8_t unused = 0;
  std::uint32_t timeout_ms = 0; // how long the client waits; it does not travel
};
MILLRACE_INSPECT(directory_request, x.unused)

struct directory {
  std::string node;
  std::uint32_t eager_bytes_max = 0;
  std::vector<provider_entry> providers; // the providers of the whole cluster
  std::vector<node_entry> nodes;

  friend bool operator==(const directory&, const directory&) = default;
};
MILLRACE_INSPECT(directory, x.node, x.eager_bytes_max, x.providers, x.nodes)

struct node_status_request {
  std::uint8_t unused = 0;
};
MILLRACE_INSPECT(node_status_request, x.unused)

/// The target that requests to the node itself name.
inline constexpr auto node_itself = "";

/// The service of the node itself.
struct node_service
  : service<
      "node", 32, method<directory_request, directory>, method<node_status_request, node_status>> {
};

} // namespace millrace::actors
