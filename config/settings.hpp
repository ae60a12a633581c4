// What a configuration file says, checked and with defaults filled in. Nodes and clients start from
// it.
#pragma once

#include <millrace/config/option_set.hpp>
#include <millrace/core/status.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::config {

/// The process itself and who may talk to it.
struct node_settings {
  std::string name = "n0";
  /// "unix:/abs/path", "tls://host:port"; never empty after loading.
  std::vector<std::string> listen;
  /// The name or address of its host, for others; empty: `name`.
  std::string host;
  std::uint32_t socket_mode = 0600; // permission bits of the socket
  /// Names or uids that may connect besides the service's own user and root.
  std::vector<std::string> allow_users;
  std::string log_level = "info";

  friend bool operator==(const node_settings&, const node_settings&) = default;
};

/// Something the system may or may not grant: used when it does, or not asked for.
enum class wish : std::uint8_t { automatic, off };

/// The arena through which bytes pass.
struct staging_settings {
  std::uint64_t size_bytes = 256 * mib;
  wish huge_pages = wish::automatic;
  wish lock = wish::automatic;

  friend bool operator==(const staging_settings&, const staging_settings&) = default;
};

/// What proves members of the cluster to each other: a secret, or certificates. Files.
struct security_settings {
  std::string secret;
  std::string certificate;
  std::string key;
  std::string authority;

  bool configured() const { return !secret.empty() || !certificate.empty(); }
  friend bool operator==(const security_settings&, const security_settings&) = default;
};

/// Where the hosts of nodes come from that name none: from the names of the nodes, or from the list of a Slurm job.
enum class host_source : std::uint8_t { names, job };

/// What the nodes of a file share.
struct cluster_settings {
  host_source hosts = host_source::names;
  std::uint32_t port = 7710; // of nodes that say no address; of several on one host, of the first

  friend bool operator==(const cluster_settings&, const cluster_settings&) = default;
};

/// Bounds of the actors.
struct limits_settings {
  std::uint64_t request_timeout_ms = 60'000;        // of requests that name no time
  std::uint64_t request_timeout_max_ms = 3'600'000; // of those that do
  std::uint32_t stores_max = 64;                    // in flight, each provider
  std::uint32_t loads_max = 256;                    // in flight, each provider
  std::uint32_t queued_max = 1024;
  std::uint32_t windows_max = 8; // in flight, each operation
  std::uint64_t shutdown_timeout_ms = 10'000;

  friend bool operator==(const limits_settings&, const limits_settings&) = default;
};

/// What providers that keep checkpoints share.
struct checkpoint_settings {
  std::uint32_t registrations_max = 1024;      // each provider
  std::uint32_t saves_queued_max = 4;          // of one shard, behind the one in flight
  std::uint64_t staging_piece_bytes = 8 * mib; // through which snapshots pass
  std::uint32_t staging_pieces = 8;            // each provider
  std::uint32_t repack_below_percent = 10;     // free space below which `repack: when_low` acts

  friend bool operator==(const checkpoint_settings&, const checkpoint_settings&) = default;
};

/// A process that stores and loads.
struct client_settings {
  std::uint64_t staging_bytes = 64 * mib;
  std::uint64_t request_timeout_ms = 60'000;
  std::uint64_t connect_timeout_ms = 5'000;
  std::uint64_t reconnect_backoff_min_ms = 50;
  std::uint64_t reconnect_backoff_max_ms = 2'000;
  std::uint32_t layer_cache_entries = 65'536;

  friend bool operator==(const client_settings&, const client_settings&) = default;
};

/// One place where models rest.
struct provider_settings {
  std::string name;
  std::string bucket; // its kind; empty: the first kind there is
  std::string group = "default";
  bool checksums = true;
  std::uint32_t weight = 1; // share of the models of its group, relative to the other providers
  /// Of the kind: `options.of<storage::memory_bucket_options>()`.
  option_set options = {};

  friend bool operator==(const provider_settings&, const provider_settings&) = default;
};

/// One node of a file that describes several.
struct cluster_node {
  std::string name;
  std::vector<std::string> listen;
  std::vector<provider_settings> providers;
  std::string host = {}; // the name or address of its host, for others; empty: `name`
  bool listens_by_default = false;

  /// Where its host is looked up, for others.
  const std::string& host_name() const noexcept { return host.empty() ? name : host; }
  /// Where others reach it: `listen`, in which its host stands for all addresses of it.
  std::vector<std::string> addresses() const;

  friend bool operator==(const cluster_node&, const cluster_node&) = default;
};

/// A whole file. `load_configuration` and `parse_configuration` of the runtime return it, checked.
struct settings {
  /// Name, address and providers of the node picked by `for_node`. When the file describes several
  /// nodes and none is picked yet, `node.name`, `node.listen` and `providers` are empty.
  node_settings node;
  std::vector<provider_settings> providers;

  staging_settings staging;
  /// Of the rooms and of the drivers: `options.of<transport::fabric_options>()`.
  option_set options;
  security_settings security;
  cluster_settings cluster;
  limits_settings limits;
  checkpoint_settings checkpoints;
  client_settings client;

  bool is_cluster = false; // the file has a section `cluster`
  /// Every node of the file, in its order; at least one.
  std::vector<cluster_node> nodes;

  /// These settings with `node` and `providers` being those of the node called `name`. Without a
  /// name, the only node of the file.
  /// Errors: `invalid_argument` that lists the names, when there is no such node or several to
  /// pick.
  result<settings> for_node(std::string_view name = {}) const;

  friend bool operator==(const settings&, const settings&) = default;
};

/// "unix:DIR/millrace/NAME.sock", DIR being $XDG_RUNTIME_DIR, or /run for root; else
/// "unix:/tmp/millrace-UID/NAME.sock".
std::string default_listen(std::string_view node_name);

/// What a node of `all` listens on that says nothing: its default Unix socket, and in a cluster with `security` a port
/// of its host. Of several nodes on a host each one gets the next port, in the order of the file.
/// Errors: `invalid_argument` where there is no such port.
result<std::vector<std::string>> default_addresses(const settings& all, const cluster_node& node);

} // namespace millrace::config
