// A cluster in a world: its nodes, their files, their disks. Used by scenarios.
#pragma once

#include <millrace/runtime/node/node.hpp>
#include <millrace/tests/sim/network.hpp>
#include <millrace/tests/support/changing_cluster.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace millrace::sim {

using testing::provider_list;

/// A node of the cluster, in a process while it runs.
struct simulated_node {
  process* in = nullptr;
  std::optional<node> runs;
};

class cluster {
public:
  /// `kinds`: those of the buckets, by where they rest.
  cluster(std::uint64_t seed, std::map<std::string, std::string> kinds);
  ~cluster();

  world in;
  std::shared_ptr<simulated_network> net = std::make_shared<simulated_network>(in);
  testing::dice& random = in.random;

  /// Starts the node of a bucket with this file, in a new process.
  status start(const provider_list& file, const std::string& rests);
  /// Stops it in order.
  void stop(const std::string& rests);
  /// Its process dies. What it had written to files stays, as after SIGKILL.
  void crash(const std::string& rests);
  bool runs(const std::string& rests) { return nodes_[rests].runs.has_value(); }
  actors::node_status status_of(const std::string& rests);
  process& process_of(const std::string& rests) { return *nodes_[rests].in; }

  std::string kind_of(const std::string& rests) const;

  /// The settings of a client with this file.
  config::settings settings(const provider_list& file) const;

private:
  std::string text(const provider_list& file) const;
  std::string path_of(const std::string& rests) const { return disk_.path() + "/" + rests; }

  testing::scratch_directory disk_{"/dev/shm"};
  std::map<std::string, std::string> kinds_;
  std::map<std::string, simulated_node> nodes_;
};

} // namespace millrace::sim
