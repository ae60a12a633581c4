// The contents of a configuration file, checked and with defaults filled in. Nodes and clients
// start from them.
#pragma once

#include <millrace/config/option_set.hpp>
#include <millrace/core/status.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::config {

/// The providers without which a node does not start.
enum class required_providers : std::uint8_t { none, any, all };

/// The process itself and who may talk to it.
struct node_settings {
  std::string name = "n0";
  /// "unix:/abs/path", "tls://host:port"; never empty after loading.
  std::vector<std::string> listen;
  /// The name or address of the node's host, as others use it. Empty: `name`.
  std::string host;
  std::uint32_t socket_mode = 0600; // permission bits of the socket
  /// Users that may connect besides the service's own user and root, by name or uid.
  std::vector<std::string> allow_users;
  std::string log_level = "info";
  required_providers require = required_providers::none;
  std::uint32_t restarts_max = 5;         // a provider's actors, within ten minutes
  std::uint64_t stall_warning_ms = 5'000; // 0: no warning
  std::uint32_t mover_nice = 0;

  friend bool operator==(const node_settings&, const node_settings&) = default;
};

/// A feature that the system may or may not grant. `automatic`: used if granted; `off`: not asked
/// for.
enum class wish : std::uint8_t { automatic, off };

/// The staging arena of a node.
struct staging_settings {
  std::uint64_t size_bytes = 256 * mib;
  wish huge_pages = wish::automatic;
  wish lock = wish::automatic;
  std::uint64_t block_bytes = 64 * mib; // granted to a provider at a time
  std::uint64_t lease_ms = 10'000;      // for what a provider holds and does not use

  friend bool operator==(const staging_settings&, const staging_settings&) = default;
};

/// How members of the cluster prove themselves to each other: by a secret, or by certificates. The
/// values are paths of files.
struct security_settings {
  std::string secret;
  std::string certificate;
  std::string key;
  std::string authority;

  bool configured() const { return !secret.empty() || !certificate.empty(); }
  friend bool operator==(const security_settings&, const security_settings&) = default;
};

/// Where nodes without a `host` get theirs: from their names, or from the list of a Slurm job.
enum class host_source : std::uint8_t { names, job };

/// Settings that the nodes of a file share.
struct cluster_settings {
  host_source hosts = host_source::names;
  std::uint32_t port = 7710; // the port of the first node of each host

  friend bool operator==(const cluster_settings&, const cluster_settings&) = default;
};

/// Bounds of the actors.
struct limits_settings {
  std::uint64_t request_timeout_ms = 60'000;        // for requests without a timeout
  std::uint64_t request_timeout_max_ms = 3'600'000; // the longest timeout of a request
  std::uint64_t progress_timeout_ms = 60'000;       // for 64 MiB, and a second more for each MiB
  std::uint32_t stores_max = 64;                    // in flight, each provider
  std::uint32_t loads_max = 256;                    // in flight, each provider
  std::uint32_t queued_max = 1024;
  std::uint32_t requests_max = 16'384;          // requests of peers under way at a node
  std::uint64_t requests_bytes_max = 512 * mib; // the bytes of these requests together
  std::uint32_t windows_max = 8;                // in flight, each operation
  std::uint64_t box_runs_max = 4'194'304;       // in all boxes of a load; ranges of all loads
  std::uint64_t shutdown_timeout_ms = 10'000;
  std::uint32_t watches_max = 32'768; // of models, each provider; as many of checkpoints

  friend bool operator==(const limits_settings&, const limits_settings&) = default;
};

/// Settings that providers with checkpoints share.
struct checkpoint_settings {
  std::uint32_t registrations_max = 1024;      // each provider
  std::uint32_t saves_queued_max = 4;          // one shard's, behind the one in flight
  std::uint64_t slot_wait_ms = 30'000;         // a save's wait until a slot can be filled
  std::uint64_t extra_bytes_max = 16 * mib;    // the user's, with one version of a shard
  std::uint64_t staging_piece_bytes = 8 * mib; // a block through which snapshots pass
  std::uint32_t staging_pieces = 8;            // each provider
  std::uint32_t repack_below_percent = 10;     // free space below which `repack: when_low` acts

  friend bool operator==(const checkpoint_settings&, const checkpoint_settings&) = default;
};

/// Settings of a process that stores and loads.
struct client_settings {
  std::uint64_t staging_bytes = 64 * mib;
  std::uint64_t request_timeout_ms = 60'000;
  std::uint64_t connect_timeout_ms = 5'000;
  std::uint64_t reconnect_backoff_min_ms = 50;
  std::uint64_t reconnect_backoff_max_ms = 2'000;
  std::uint32_t layer_cache_entries = 65'536;
  std::uint32_t mover_nice = 19;
  std::uint64_t mover_patience_ms = 2'000; // also of an embedded node whose movers yield
  bool bind_readers = true;                // movers stay near the device for which loaders read
  /// Users whose services may answer, besides root and the client's own user, by name or uid.
  std::vector<std::string> trust_users;

  friend bool operator==(const client_settings&, const client_settings&) = default;
};

/// One provider: a place where models are stored.
struct provider_settings {
  std::string name;
  std::string bucket; // its kind; empty: the first kind
  std::string group = "default";
  bool checksums = true;
  std::uint32_t weight = 1; // share of the models of its group, relative to the other providers
  std::uint32_t staging_percent = 100; // the largest part of the staging arena
  /// The options of its kind: `options.of<KIND_options>()`.
  option_set options = {};
  /// The id by which names are placed, for a bucket that keeps none yet. Empty: the name.
  std::string id = {};

  friend bool operator==(const provider_settings&, const provider_settings&) = default;
};

/// One node of a file that describes several.
struct cluster_node {
  std::string name;
  std::vector<std::string> listen;
  std::vector<provider_settings> providers;
  std::string host = {}; // as `node_settings::host`
  bool listens_by_default = false;

  /// Returns the name by which others look up the node's host.
  const std::string& host_name() const noexcept { return host.empty() ? name : host; }
  /// Returns the addresses for others: `listen`, with the host's name in place of 0.0.0.0 and ::.
  std::vector<std::string> addresses() const;

  friend bool operator==(const cluster_node&, const cluster_node&) = default;
};

/// A whole file, checked. `load_configuration` and `parse_configuration` of the runtime return it.
struct settings {
  /// Name, address and providers of the node picked by `for_node`. When the file describes several
  /// nodes and none is picked yet, `node.name`, `node.listen` and `providers` are empty.
  node_settings node;
  std::vector<provider_settings> providers;

  staging_settings staging;
  /// The options of rooms and drivers: `options.of<transport::fabric_options>()`.
  option_set options;
  security_settings security;
  cluster_settings cluster;
  limits_settings limits;
  checkpoint_settings checkpoints;
  client_settings client;

  bool is_cluster = false; // the file has a section `cluster`
  /// Every node of the file, in its order; at least one.
  std::vector<cluster_node> nodes;

  /// Returns these settings with `node` and `providers` of the node called `name`. Without a name
  /// it takes the only node of the file.
  /// Errors:  `invalid_argument` that lists the names, if no node has the name, or if there are
  ///          several and no name is given.
  result<settings> for_node(std::string_view name = {}) const;

  friend bool operator==(const settings&, const settings&) = default;
};

/// Returns "unix:DIR/millrace/NAME.sock". DIR is $XDG_RUNTIME_DIR if it is a directory of this user
/// that no other can write to, else /run for root, else /run/user/UID under the same condition. If
/// there is none it returns "unix:HOME/.millrace-HOST/NAME.sock". HOME is $HOME if no other user
/// can write to it, else the home directory of the password database.
std::string default_listen(std::string_view node_name);

/// Returns the addresses of a node that gives none: its default Unix socket and, in a cluster with
/// `security`, a port of its host. The nodes of one host get consecutive ports from `cluster.port`
/// on, in the order of the file.
/// Errors:  `invalid_argument` when no port is left.
result<std::vector<std::string>> default_addresses(const settings& all, const cluster_node& node);

} // namespace millrace::config
