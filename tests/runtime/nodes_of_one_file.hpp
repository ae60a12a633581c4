// The nodes of a cluster in this process, and the file with which they run. Used by tests of
// clusters whose lists change.
#pragma once

#include <millrace/runtime/node/node.hpp>
#include <millrace/tests/support/changing_cluster.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace millrace::testing {

struct nodes_of_one_file {
  scratch_directory dir;
  cluster_place place;
  std::map<std::string, std::optional<node>> nodes;

  explicit nodes_of_one_file(std::map<std::string, std::string> kinds = {})
    : place{dir.path(), std::move(kinds)} {}

  void stop(const std::string& rests) { nodes[rests].reset(); }
  /// Starts one node, again if it runs, with a file that the others need not have.
  void start(const provider_list& providers, const std::string& rests) {
    stop(rests);
    nodes[rests].emplace(node::embed(place.settings(providers).for_node("on-" + rests).value()));
  }
  /// Starts all nodes of a file, and no others.
  void start_all(const provider_list& providers) {
    nodes.clear();
    for (auto& p : providers)
      start(providers, p.rests);
  }
  /// Returns a client that has asked nothing yet.
  client with(const provider_list& providers) const { return place.with(providers); }

  client run(const provider_list& providers) {
    start_all(providers);
    return with(providers);
  }
};

} // namespace millrace::testing
