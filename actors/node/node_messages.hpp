// The messages about nodes: the directory and the status. Sent by clients; they hold descriptors
// only.
#pragma once

#include <millrace/actors/provider_status.hpp>
#include <millrace/actors/service.hpp>
#include <millrace/actors/staging/staging_status.hpp>
#include <millrace/transport/driver_report.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::actors {

struct directory_request {
  std::uint8_t unused = 0;
  std::uint32_t timeout_ms = 0; // how long the client waits; it does not travel
};
MILLRACE_INSPECT(directory_request, x.unused)

/// The place of a provider. Clients compute from these entries which provider keeps a name.
struct provider_entry {
  std::string name;
  std::string node;
  std::string address;
  std::string kind;
  std::string group;
  std::uint32_t weight = 1;
  bool checksums = true;              // the default for stores
  bool checkpoints = false;           // it keeps checkpoints
  std::vector<std::string> addresses; // all addresses of its node; `address` is the first
  std::string id;                     // by which names are placed; empty: the name

  friend bool operator==(const provider_entry&, const provider_entry&) = default;
};
MILLRACE_INSPECT(
  provider_entry, x.name, x.node, x.address, x.kind, x.group, x.weight, x.checksums, x.checkpoints,
  x.addresses, x.id)

/// A node of the cluster, with or without providers.
struct node_entry {
  std::string name;
  std::vector<std::string> addresses; // best first

  friend bool operator==(const node_entry&, const node_entry&) = default;
};
MILLRACE_INSPECT(node_entry, x.name, x.addresses)

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

/// Keeps the place on the wire where former versions had a struct. They read an empty struct here,
/// and theirs is skipped.
struct former_struct {
  bool unused = false;

  friend bool operator==(const former_struct&, const former_struct&) = default;
};
MILLRACE_INSPECT(former_struct, x.unused)

struct node_status {
  std::string node;
  std::string address;
  std::string version;
  std::uint64_t pid = 0;
  std::uint64_t uptime_ms = 0;
  std::uint64_t connections = 0;
  std::uint64_t staging_capacity_bytes = 0;
  std::uint64_t staging_used_bytes = 0;
  std::vector<provider_status> providers;
  std::vector<transport::path_stats> paths;
  std::vector<std::string> addresses; // all addresses at which it listens; `address` is the first
  former_struct rdma;                 // replaced by `reports`
  std::vector<transport::driver_report> reports;
  std::uint64_t requests = 0; // requests of peers under way
  std::uint64_t requests_bytes = 0;
  std::uint64_t buffers_bytes = 0;     // in frames that wait to be sent or have arrived in part
  std::uint64_t stalls = 0;            // the I/O loop's, longer than `node.stall_warning`
  std::vector<staging_status> staging; // one for each lender
  // A defect has ended so many of the actors that serve all providers. `down` says why one of them
  // is not started anew.
  std::uint64_t actor_failures = 0;
  std::string last_failure;
  std::string down;

  friend bool operator==(const node_status&, const node_status&) = default;
};
MILLRACE_INSPECT(
  node_status, x.node, x.address, x.version, x.pid, x.uptime_ms, x.connections,
  x.staging_capacity_bytes, x.staging_used_bytes, x.providers, x.paths, x.addresses, x.rdma,
  x.reports, x.requests, x.requests_bytes, x.buffers_bytes, x.stalls, x.staging, x.actor_failures,
  x.last_failure, x.down)

/// The target that requests to the node itself name.
inline constexpr auto node_itself = "";

/// The service of the node itself.
struct node_service
  : service<
      "node", 32, method<directory_request, directory>, method<node_status_request, node_status>> {
};

} // namespace millrace::actors
