// Entries of the cluster's directory: its providers and its nodes. Nodes send them; programs get
// them from `client` and `repository`.
#pragma once

#include <millrace/core/inspect.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

/// The place of a provider. Clients compute from these entries which provider keeps a name.
struct provider_entry {
  std::string name;
  std::string node;    // the name of its node
  std::string address; // the first of `addresses`
  std::string kind;    // of its bucket or pool: "memory"
  std::string group;
  std::uint32_t weight = 1;           // it gets names in proportion to its weight
  bool checksums = true;              // the default for stores
  bool checkpoints = false;           // it keeps checkpoints
  std::vector<std::string> addresses; // all addresses of its node, best first
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
  std::uint64_t data_bytes = 0;       // of its data server; 0: it has none

  friend bool operator==(const node_entry&, const node_entry&) = default;
};
MILLRACE_INSPECT(node_entry, x.name, x.addresses, x.data_bytes)

} // namespace millrace
