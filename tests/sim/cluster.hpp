// A cluster in a world: its nodes, their files, their disks. Used by scenarios.
#pragma once

#include <millrace/actors/staging/staging_lender.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/storage/pmem/lease.hpp>
#include <millrace/storage/pmem/medium/persist.hpp>
#include <millrace/tests/sim/disks.hpp>
#include <millrace/tests/sim/network.hpp>
#include <millrace/tests/support/changing_cluster.hpp>
#include <millrace/tests/support/descriptors.hpp>
#include <millrace/tests/support/power_cut.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/transport/memory/region.hpp>

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
  directory_left left; // by the process that died
};

/// Returns the names of buckets, `least` of them or MILLRACE_SIM_NODES.
std::vector<std::string> buckets_of_each_cluster(std::size_t least);

/// Watches what of each pool is persistent.
class watched_media final : public storage::pmem::medium_watcher {
public:
  watched_media() { storage::pmem::simulated_medium = this; }
  ~watched_media() override { storage::pmem::simulated_medium = nullptr; }
  watched_media(const watched_media&) = delete;
  watched_media& operator=(const watched_media&) = delete;

  std::shared_ptr<storage::pmem::persist_observer> opened(
    const std::string& path, std::span<const std::byte> pool) override;
  /// Takes out of a copy of an open pool what a power cut would lose.
  void cut_power(const std::string& path, const std::string& copy, testing::dice& random);

private:
  std::map<std::string, std::shared_ptr<testing::power_cut_recorder>> pools_; // by path
};

class cluster {
public:
  /// `kinds`: those of the buckets, by where they rest; "memory" if left out. The complete steps of
  /// a "flushed pmem" are copied to `flush_directory`.
  /// `more`: further lines of each configuration.
  cluster(std::uint64_t seed, std::map<std::string, std::string> kinds, std::string more = {});
  ~cluster();

  world in;
  std::shared_ptr<simulated_network> net = std::make_shared<simulated_network>(in);
  testing::dice& random = in.random;

  /// Starts the node of a bucket with this file, in a new process.
  status start(const provider_list& file, const std::string& rests);
  /// Stops it in order.
  void stop(const std::string& rests);
  /// Its process dies, often while it writes files, some time from now. What it had written stays,
  /// as after SIGKILL; or its machine loses power. Then of a pool stays what was written back, and
  /// of other files what was synced.
  void crash(const std::string& rests);
  bool runs(const std::string& rests) { return nodes_[rests].runs.has_value(); }
  /// Providers are done with every request, whatever a transfer or a peer did.
  void demand_settled();
  /// When all programs have ended, nothing of theirs is left, and an idle cluster is quiet. Stops
  /// all nodes.
  void demand_rest();
  process& process_of(const std::string& rests) { return *nodes_[rests].in; }

  std::string kind_of(const std::string& rests) const;
  const std::string& directory() const { return disk_.path(); }
  std::string flush_directory(const std::string& rests) const {
    return disks_.path_of(rests) + "/steps";
  }
  node_status status_of(const std::string& rests);

  /// The settings of a client with this file.
  config::settings settings(const provider_list& file) const;

private:
  std::string bucket_text(const std::string& rests) const;
  std::string text(const provider_list& file) const;
  std::string path_of(const std::string& rests) const { return disk_.path() + "/" + rests; }

  bool has_pool(const std::string& rests) const { return kind_of(rests).ends_with("pmem"); }
  bool has_files(const std::string& rests) const;
  void die(const std::string& rests, bool power_cut);
  void die_while_it_writes(const std::string& rests, bool power_cut);

  testing::scratch_directory disk_{"/dev/shm"};
  simulated_disks disks_{disk_.path() + "/disks"};
  watched_media media_;
  std::map<std::string, std::string> kinds_;
  const std::string more_;
  std::map<std::string, simulated_node> nodes_;
  const std::size_t exposed_before_ = transport::exposed_regions();
  const std::size_t leased_before_ = storage::pmem::leased_slots();
  const std::size_t staging_before_ = actors::staging_memories();
  const std::size_t descriptors_before_ = testing::open_descriptors();
};

} // namespace millrace::sim
