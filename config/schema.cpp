// The table of keys; those of transports are in schema_transport.cpp. A new key is one row in one of them and one
// member in settings.hpp.
#include <millrace/config/schema.hpp>
#include <millrace/config/section.hpp>
#include <millrace/core/durations.hpp>

#include <algorithm>
#include <array>

namespace millrace::config {

namespace {

constexpr std::array<std::string_view, 6> log_levels = {"trace", "debug", "info",
                                                        "warn",  "error", "off"};
// Choices of an enumeration stand in the order of its values.
constexpr std::array<std::string_view, 2> staging_modes = {"pinned", "on_demand"};
constexpr std::array<std::string_view, 2> wishes = {"auto", "off"};
constexpr std::array<std::string_view, 3> buckets = {"memory", "rocksdb", "pmem"};
constexpr std::array<std::string_view, 2> when_full_choices = {"refuse", "evict"};
constexpr std::array<std::string_view, 2> when_low_choices = {"refuse", "reclaim"};
constexpr std::array<std::string_view, 2> repack_modes = {"off", "when_low"};
constexpr std::array<std::string_view, 3> host_sources = {"auto", "names", "job"};
constexpr std::array<std::string_view, 1> rocksdb_alone = {"rocksdb"};
constexpr std::array<std::string_view, 1> pmem_alone = {"pmem"};
constexpr std::array<std::string_view, 2> with_path = {"rocksdb", "pmem"};

constexpr key_spec required(key_spec key) {
  key.required = true;
  return key;
}

constexpr key_spec only_for(std::span<const std::string_view> kinds, key_spec key) {
  key.only_for = kinds;
  return key;
}
constexpr key_spec rocksdb_only(key_spec key) { return only_for(rocksdb_alone, key); }
constexpr key_spec pmem_only(key_spec key) { return only_for(pmem_alone, key); }

using enum key_type;

constexpr section node{"node"};
constexpr auto node_keys = [] {
  using s = node_settings;
  return std::to_array<bound_key<s>>({
    {node.plain("name", name, "n0", "the node's name, unique in its cluster"), put<s, &s::name>},
    {node.plain(
       "listen", addresses, {},
       "where clients connect, one address or a list; without it, `millrace/NAME.sock` under "
       "`$XDG_RUNTIME_DIR`, or `/run` for root, else `/tmp/millrace-UID/NAME.sock`"),
     put<s, &s::listen>},
    {node.plain(
       "host", host, {},
       "name or address of the node's host, for others, where `listen` says `0.0.0.0` or `[::]`; "
       "without it, `name`"),
     put<s, &s::host>},
    {node.ranged("socket_mode", mode, "0600", 0, 0777, "permissions of the socket, in octal"),
     put<s, &s::socket_mode>},
    {node.plain(
       "allow_users", users, "[]",
       "users (names or uids) that may connect besides the service's own and root"),
     put<s, &s::allow_users>},
    {node.choice("log_level", "info", log_levels, "least severe event that is logged"),
     put<s, &s::log_level>},
  });
}();

constexpr section staging{"staging"};
constexpr auto staging_keys = [] {
  using s = staging_settings;
  return std::to_array<bound_key<s>>({
    {staging.size("size", "256MiB", mib, 16 * tib, "arena through which bytes pass"),
     put<s, &s::size_bytes>},
    {staging.choice(
       "mode", "pinned", staging_modes,
       "touched and registered once at start, or at each request (for comparison only)"),
     put<s, &s::mode>},
    {staging.choice(
       "huge_pages", "auto", wishes,
       "huge pages of the system's pool, if it has some and node.allow_users names nobody"),
     put<s, &s::huge_pages>},
    {staging.choice("lock", "auto", wishes, "keep the arena from being swapped out, if allowed"),
     put<s, &s::lock>},
  });
}();

constexpr section limits{"limits"};
constexpr auto limits_keys = [] {
  using s = limits_settings;
  return std::to_array<bound_key<s>>({
    {limits.ms(
       "request_timeout", "60s", 1, day_ms,
       "how long a provider works on a request that names no time"),
     put<s, &s::request_timeout_ms>},
    {limits.ms("request_timeout_max", "1h", 1, day_ms, "longest time that a request may name"),
     put<s, &s::request_timeout_max_ms>},
    {limits.count("stores_max", "64", 1, 65'536, "stores in flight in each provider"),
     put<s, &s::stores_max>},
    {limits.count("loads_max", "256", 1, 65'536, "loads in flight in each provider"),
     put<s, &s::loads_max>},
    {limits.count(
       "queued_max", "1024", 0, 1'048'576,
       "requests waiting in each provider before it answers busy"),
     put<s, &s::queued_max>},
    {limits.count("windows_max", "8", 1, 1'024, "windows in flight of each operation"),
     put<s, &s::windows_max>},
    {limits.ms("shutdown_timeout", "10s", 0, hour_ms, "time that work in flight has to finish"),
     put<s, &s::shutdown_timeout_ms>},
  });
}();

constexpr section checkpoints{"checkpoints"};
constexpr auto checkpoint_keys = [] {
  using s = checkpoint_settings;
  return std::to_array<bound_key<s>>({
    {checkpoints.count(
       "registrations_max", "1024", 1, 65'536, "shards of running jobs in each provider"),
     put<s, &s::registrations_max>},
    {checkpoints.count(
       "saves_queued_max", "4", 0, 1'024, "saves of a shard waiting behind the one in flight"),
     put<s, &s::saves_queued_max>},
    {checkpoints.size(
       "staging_piece", "8MiB", mib, gib, "piece of staging memory through which snapshots pass"),
     put<s, &s::staging_piece_bytes>},
    {checkpoints.count(
       "staging_pieces", "8", 1, 4'096,
       "such pieces of each provider; a shard that fits in all of them is staged after one copy"),
     put<s, &s::staging_pieces>},
    {checkpoints.count(
       "repack_below", "10", 0, 100, "percent of a pool: less is low space to `repack: when_low`"),
     put<s, &s::repack_below_percent>},
  });
}();

constexpr section client{"client"};
constexpr auto client_keys = [] {
  using s = client_settings;
  return std::to_array<bound_key<s>>({
    {client.size("staging", "64MiB", mib, 16 * tib, "arena of a client process"),
     put<s, &s::staging_bytes>},
    {client.ms("request_timeout", "60s", 1, day_ms, "deadline of a request without its own"),
     put<s, &s::request_timeout_ms>},
    {client.ms("connect_timeout", "5s", 1, hour_ms, "longest wait for a connection"),
     put<s, &s::connect_timeout_ms>},
    {client.ms("reconnect_backoff_min", "50ms", 1, hour_ms, "first wait before reconnecting"),
     put<s, &s::reconnect_backoff_min_ms>},
    {client.ms("reconnect_backoff_max", "2s", 1, hour_ms, "longest wait, reached by doubling"),
     put<s, &s::reconnect_backoff_max_ms>},
    {client.count("layer_cache", "65536", 0, 16'777'216, "layer descriptions kept"),
     put<s, &s::layer_cache_entries>},
  });
}();

constexpr section providers{"providers[]"};
constexpr auto provider_keys = [] {
  using s = provider_settings;
  return std::to_array<bound_key<s>>({
    {required(providers.plain("name", name, {}, "the provider's name, unique in its cluster")),
     put<s, &s::name>},
    {providers.choice("bucket", "memory", buckets, "where models rest"), put<s, &s::bucket>},
    {providers.size("capacity", "1GiB", mib, 1024 * tib, "bytes of models it holds at most"),
     put<s, &s::capacity_bytes>},
    {required(only_for(
       with_path,
       providers.plain(
         "path", path, {}, "directory of the data (rocksdb); file or device of the pool (pmem)"))),
     put<s, &s::path>},
    {providers.plain("group", name, "default", "models are spread over the providers of a group"),
     put<s, &s::group>},
    {providers.choice(
       "when_full", "refuse", when_full_choices,
       "refuse a store, or evict the least recently used models that are not pinned"),
     put<s, &s::full>},
    {only_for(
       with_path, providers.count("io_threads", "4", 1, 64, "threads that read and write files")),
     put<s, &s::io_threads>},
    {only_for(
       with_path,
       providers.size(
         "window", "8MiB", 512 * kib, gib, "staging of one read or write of a large model")),
     put<s, &s::window_bytes>},
    {rocksdb_only(providers.size(
       "inline_max", "64KiB", 0, 4 * mib, "models up to this size rest inside RocksDB")),
     put<s, &s::inline_max_bytes>},
    {pmem_only(providers.plain("create", boolean, "true", "make the pool where there is none")),
     put<s, &s::create>},
    {pmem_only(providers.choice(
       "low_space", "refuse", when_low_choices,
       "what a checkpoint without room does: be refused, or reclaim what jobs left that are not "
       "attached: second versions of finished ones, and versions of others beyond their newest "
       "two; never any of a model whose newest complete step is damaged")),
     put<s, &s::low_space>},
    {pmem_only(providers.choice(
       "repack", "off", repack_modes,
       "reclaim by itself what finished and dead jobs left, when space is low")),
     put<s, &s::repack>},
    {pmem_only(providers.plain(
       "flush_to", path, {},
       "directory to which complete steps are copied on, if given; shards take a third slot")),
     put<s, &s::flush_to>},
    {pmem_only(providers.count(
       "flush_every", "1", 1, 1'000'000, "copy on steps whose number this divides")),
     put<s, &s::flush_every>},
    {pmem_only(
       providers.count("flush_keep", "2", 1, 10'000, "steps of a model kept in that directory")),
     put<s, &s::flush_keep>},
    {providers.plain("checksums", boolean, "true", "verify every load against the store"),
     put<s, &s::checksums>},
    {providers.count("weight", "1", 1, 1000, "share of its group's models, relative to the others"),
     put<s, &s::weight>},
  });
}();

constexpr section cluster{"cluster"};
constexpr auto cluster_keys = [] {
  using s = cluster_settings;
  return std::to_array<bound_key<s>>({
    {cluster.choice(
       "hosts", "auto", host_sources,
       "where nodes run that do not say it: on the host of their name, or, the first ones on the "
       "first one and so on, on the hosts of the Slurm job that reads the file; by itself, on the "
       "job's where the names mean no hosts"),
     put<s, &s::hosts>},
    {cluster.count(
       "port", "7710", 1, 65'535,
       "where nodes listen that say no address; of several on one host the first, the others at "
       "the next ports"),
     put<s, &s::port>},
  });
}();

constexpr section nodes{"cluster.nodes[]"};
constexpr auto node_entry_keys = [] {
  using s = cluster_node;
  return std::to_array<bound_key<s>>({
    {required(nodes.plain("name", name, {}, "the node's name; `serve --node NAME` is this one")),
     put<s, &s::name>},
    {nodes.plain(
       "listen", addresses, {},
       "as `node.listen`; without it, with `security`, also `tls://HOST:PORT`"),
     put<s, &s::listen>},
    {nodes.plain("host", host, {}, "as `node.host`"), put<s, &s::host>},
  });
}();

constexpr std::array<std::string_view, 14> top_level = {
  "node",    "staging",  "transport", "shm",         "tcp",    "verbs",     "staged",
  "channel", "security", "limits",    "checkpoints", "client", "providers", "cluster"};

template <class... Sections>
std::vector<key_spec> keys_of_all() {
  std::vector<key_spec> all;
  auto append = [&](auto rows) {
    for (auto& row : rows)
      all.push_back(row.spec);
  };
  (append(keys_of<Sections>()), ...);
  return all;
}

} // namespace

bool is_for(const key_spec& key, std::string_view bucket) noexcept {
  return key.only_for.empty() ||
    std::find(key.only_for.begin(), key.only_for.end(), bucket) != key.only_for.end();
}

std::span<const std::string_view> bucket_names() { return buckets; }

std::string path_of(const key_spec& key) {
  return std::string{key.section} + "." + std::string{key.name};
}

std::span<const std::string_view> top_level_keys() { return top_level; }

template <>
std::span<const bound_key<node_settings>> keys_of() {
  return node_keys;
}
template <>
std::span<const bound_key<staging_settings>> keys_of() {
  return staging_keys;
}
template <>
std::span<const bound_key<cluster_settings>> keys_of() {
  return cluster_keys;
}
template <>
std::span<const bound_key<limits_settings>> keys_of() {
  return limits_keys;
}
template <>
std::span<const bound_key<checkpoint_settings>> keys_of() {
  return checkpoint_keys;
}
template <>
std::span<const bound_key<client_settings>> keys_of() {
  return client_keys;
}
template <>
std::span<const bound_key<provider_settings>> keys_of() {
  return provider_keys;
}
template <>
std::span<const bound_key<cluster_node>> keys_of() {
  return node_entry_keys;
}

std::span<const key_spec> schema() {
  static const auto all = keys_of_all<
    node_settings, staging_settings, transport_settings, shm_settings, tcp_settings, verbs_settings,
    staged_settings, channel_settings, security_settings, limits_settings, checkpoint_settings,
    client_settings, provider_settings, cluster_settings, cluster_node>();
  return all;
}

} // namespace millrace::config
