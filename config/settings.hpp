// What a configuration file says, checked and with defaults filled in. Nodes and clients start from
// it.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::config {

inline constexpr std::uint64_t kib = 1024;
inline constexpr std::uint64_t mib = 1024 * kib;
inline constexpr std::uint64_t gib = 1024 * mib;
inline constexpr std::uint64_t tib = 1024 * gib;

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

enum class staging_mode : std::uint8_t { pinned, on_demand };

/// Something the system may or may not grant: used when it does, or not asked for.
enum class wish : std::uint8_t { automatic, off };

/// The arena through which bytes pass.
struct staging_settings {
  std::uint64_t size_bytes = 256 * mib;
  staging_mode mode = staging_mode::pinned;
  wish huge_pages = wish::automatic;
  wish lock = wish::automatic;

  friend bool operator==(const staging_settings&, const staging_settings&) = default;
};

/// How bytes move.
struct transport_settings {
  std::vector<std::string> prefer = {
    "local", "shm", "verbs", "tcp", "staged"}; // drivers, best first
  std::uint32_t movers = 0;                    // 0: one per core, at most 8
  std::uint32_t device_threads = 2;            // wait for copies of GPUs
  std::uint64_t chunk_bytes = mib;
  std::uint64_t eager_max_bytes = 4 * kib; // payloads up to this size ride inside a message
  std::uint64_t retry_after_ms = 10'000;   // how long a driver that failed with a peer is left out

  friend bool operator==(const transport_settings&, const transport_settings&) = default;
};

/// Control connections.
struct channel_settings {
  std::uint64_t frame_max_bytes = 16 * mib;
  std::uint64_t send_queue_max_bytes = 64 * mib;
  std::uint64_t heartbeat_ms = 2'000;
  std::uint64_t peer_timeout_ms = 10'000;
  std::uint64_t handshake_timeout_ms = 5'000;
  std::uint32_t requests_max = 256; // in flight, granted to each peer
  std::uint64_t poll_us = 50;       // how long at most to poll before sleeping; 0: never
  std::uint32_t connections_max = 256;
  std::uint32_t handshakes_max = 256;           // from networks, not yet proved
  std::uint32_t handshakes_per_source_max = 64; // of them from one address
  std::uint64_t stagger_ms = 250;               // how long one address of a host is tried alone
  std::uint32_t lookups_max = 256;              // host names looked up, or waiting for it
  std::uint32_t lookup_threads_max = 4;
  std::uint32_t lookup_addresses_max = 16; // of one name

  friend bool operator==(const channel_settings&, const channel_settings&) = default;
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

/// Bulk between processes of one host.
struct shm_settings {
  std::uint32_t transfers_max = 65'536;        // with each peer
  std::uint64_t backlog_max_bytes = 256 * mib; // of each peer
  std::uint32_t mapped_max = 4'096;            // of each peer
  std::uint64_t batch_delay_ms = 1;
  std::uint64_t answer_timeout_ms = 600'000;

  friend bool operator==(const shm_settings&, const shm_settings&) = default;
};

/// Bulk over TCP: several streams for each peer.
struct tcp_settings {
  std::vector<std::string> listen; // "10.1.0.2:0"; a network of its own for bulk
  std::uint32_t streams = 4;       // for each peer
  std::uint32_t io_threads = 2;
  std::uint64_t chunk_bytes = mib;
  std::uint64_t small_max_bytes = 64 * kib;   // up to it, transfers take the first stream
  std::uint32_t requests_max = 64;            // chunks asked for at a time, each stream
  std::uint64_t inflight_max_bytes = 4 * mib; // each stream
  std::uint32_t transfers_max = 65'536;       // waiting or running, each peer
  std::uint64_t connect_timeout_ms = 5'000;
  std::uint64_t admission_timeout_ms = 5'000;
  std::uint64_t stall_timeout_ms = 10'000;
  std::uint64_t backoff_min_ms = 50;
  std::uint64_t backoff_max_ms = 2'000;
  std::uint32_t attempts_max = 3; // streams that may break under one chunk
  std::uint64_t keepalive_ms = 15'000;
  std::uint64_t send_buffer_bytes = 0; // 0: the kernel decides
  std::uint64_t receive_buffer_bytes = 0;
  std::uint32_t admissions_max = 256;
  std::uint32_t admissions_per_source_max = 64;
  bool checksum = false;
  bool encrypt = false;

  friend bool operator==(const tcp_settings&, const tcp_settings&) = default;
};

/// Who tells queue pairs of their partner.
enum class verbs_connect : std::uint8_t { channel, rdma_cm };

/// Bulk over RDMA devices.
struct verbs_settings {
  std::vector<std::string> devices;       // "mlx5_0:1"; empty: all
  std::optional<std::uint32_t> gid_index; // none: chosen by a rule
  std::uint32_t mtu = 0;                  // 0: what the ports have
  verbs_connect connect = verbs_connect::channel;
  std::uint32_t setup_threads = 8; // at most
  std::uint32_t queue_depth = 128; // each rail of a peer
  std::uint32_t sge_max = 30;
  std::uint64_t inline_max_bytes = 220;
  std::uint64_t message_max_bytes = mib;
  std::uint64_t inflight_max_bytes = 16 * mib; // each rail of a peer
  std::uint64_t port_inflight_max_bytes = 32 * mib;
  std::uint32_t signal_interval = 16;
  std::uint64_t stripe_min_bytes = 4 * mib;
  std::uint64_t poll_us = 50;
  std::uint64_t sleep_ms = 1'000;
  bool bind_thread = true;
  std::uint64_t connect_timeout_ms = 5'000;
  std::uint64_t ack_timeout_ms = 67;
  std::uint32_t ack_retries = 6;
  std::uint64_t op_timeout_ms = 15'000;
  std::uint32_t op_retries = 3;
  std::uint64_t probe_interval_ms = 1'000;
  std::uint64_t register_retry_ms = 10'000;
  std::uint32_t cache_entries_max = 4'096;
  std::uint64_t cache_max_bytes = 0;   // 0: half of the memory
  std::optional<bool> windows_checked; // none: as devices are known
  bool watch_unmaps = true;
  std::uint32_t grants_max = 4'096;
  std::uint32_t windows_max = 65'536;
  std::uint64_t backlog_bytes_max = 64u << 20;

  friend bool operator==(const verbs_settings&, const verbs_settings&) = default;
};

/// Memory of GPUs that no network reaches, through memory of the host.
struct staged_settings {
  std::uint64_t size_bytes = 64 * mib;
  std::uint64_t chunk_bytes = 4 * mib;
  std::uint32_t chunks_max = 8;         // lent to one peer
  std::uint32_t transfers_max = 65'536; // waiting, each peer
  std::uint64_t hold_timeout_ms = 30'000;

  friend bool operator==(const staged_settings&, const staged_settings&) = default;
};

/// Where the hosts of nodes that say none are known from: their names, or the list of a Slurm job. `automatic` is the
/// job where nothing else can be meant: see `place_in_job`.
enum class host_source : std::uint8_t { automatic, names, job };

/// What the nodes of a file share.
struct cluster_settings {
  host_source hosts = host_source::automatic;
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

enum class bucket_kind : std::uint8_t { memory, rocksdb, pmem };
std::string_view to_string(bucket_kind kind) noexcept;

enum class when_full : std::uint8_t { refuse, evict };

/// What a pool does when a checkpoint finds no room.
enum class when_low : std::uint8_t { refuse, reclaim };

/// Whether a provider reclaims space by itself.
enum class repack_mode : std::uint8_t { off, when_low };

/// One place where models rest.
struct provider_settings {
  std::string name;
  bucket_kind bucket = bucket_kind::memory;
  std::uint64_t capacity_bytes = gib;
  std::string path; // rocksdb: directory; pmem: file or device
  std::string group = "default";
  when_full full = when_full::refuse;
  std::uint32_t io_threads = 4;              // rocksdb and pmem
  std::uint64_t window_bytes = 8 * mib;      // rocksdb and pmem: staging of one read or write
  std::uint64_t inline_max_bytes = 64 * kib; // rocksdb only: models up to this size rest in RocksDB
  // pmem only
  bool create = true; // make the pool where there is none
  when_low low_space = when_low::refuse;
  repack_mode repack = repack_mode::off;
  std::string flush_to; // directory to which versions are copied on; empty: nowhere
  std::uint32_t flush_every = 1;
  std::uint32_t flush_keep = 2;
  // of every kind
  bool checksums = true;
  std::uint32_t weight = 1; // share of the models of its group, relative to the other providers

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

/// Where a client finds a provider.
struct provider_location {
  std::string node;
  std::vector<std::string> addresses;
  std::string provider;
  std::string group;
  std::uint32_t weight = 1;
  bucket_kind bucket = bucket_kind::memory;

  friend bool operator==(const provider_location&, const provider_location&) = default;
};

/// A whole file. `load_file` and `parse` give it, checked.
struct settings {
  /// Name, address and providers of the node picked by `for_node`. When the file describes several
  /// nodes and none is picked yet, `node.name`, `node.listen` and `providers` are empty.
  node_settings node;
  std::vector<provider_settings> providers;

  staging_settings staging;
  transport_settings transport;
  shm_settings shm;
  tcp_settings tcp;
  verbs_settings verbs;
  staged_settings staged;
  channel_settings channel;
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

  /// All providers of all nodes, in the order of the file.
  std::vector<provider_location> provider_locations() const;

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
