// The keys of the sections that belong to no other room and no kind, and the list of all sections.
#include <millrace/config/schema.hpp>
#include <millrace/core/durations.hpp>
#include <millrace/core/placement.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace millrace::config {

namespace {

constexpr key_text log_levels[] = {"trace", "debug", "info", "warn", "error", "off"};
// The choices of an enumeration stand in the order of its values.
constexpr key_text wishes[] = {"auto", "off"};
constexpr key_text host_sources[] = {"names", "job"};
constexpr key_text required_choices[] = {"none", "any", "all"};

} // namespace

template <>
key_table<node_settings> keys_of() {
  using s = node_settings;
  static constexpr auto rows = std::to_array<bound_key<s>>({
    key<&s::name>(plain("name", key_type::name, "the node's name, unique in its cluster")),
    key<&s::listen>(plain(
      "listen", key_type::addresses,
      "where clients connect: one address or a list. By default `millrace/NAME.sock` under "
      "`$XDG_RUNTIME_DIR`, if only this user can write there; else under `/run` for root, under "
      "`/run/user/UID` where it exists, or `~/.millrace-HOST/NAME.sock`")),
    key<&s::host>(plain(
      "host", key_type::host,
      "name or address of the node's host, which other processes are told where `listen` says "
      "`0.0.0.0` or `[::]`. By default `name`")),
    key<&s::socket_mode>(expert(
      ranged("socket_mode", key_type::mode, 0, 0777, "permissions of the Unix socket, in octal"))),
    key<&s::allow_users>(plain(
      "allow_users", key_type::users,
      "users (names or numbers) that may connect, besides the service's own user and root")),
    key<&s::log_level>(choice("log_level", log_levels, "the least severe event that is logged")),
    key<&s::require>(expert(choice(
      "require", required_choices,
      "the providers without which the node does not start: `none` starts with those that can be "
      "opened, and answers requests to the others with `unavailable` and the reason; `any` does "
      "not "
      "start without at least one; `all` needs every one"))),
    key<&s::restarts_max>(expert(count(
      "restarts_max", 0, 1'000,
      "how often within ten minutes an actor of a provider that a defect has ended is restarted; "
      "then the provider is down"))),
    key<&s::stall_warning_ms>(expert(ms(
      "stall_warning", 0, hour_ms,
      "a warning is logged when the node's I/O loop stands in one callback for this long; `0ms` "
      "for no warning"))),
    key<&s::mover_nice>(expert(count(
      "mover_nice", 0, 19,
      "by how much the priority of the threads that copy is below that of the node's other "
      "threads (a nice value). A program that trains on every core and embeds its node gives it"
      " `19`; `client.mover_patience` and `fence()` then act as in a client"))),
  });
  return {rows};
}

template <>
key_table<staging_settings> keys_of() {
  using s = staging_settings;
  static constexpr auto rows = std::to_array<bound_key<s>>({
    key<&s::size_bytes>(
      size("size", mib, 16 * tib, "the arena through which bytes move to and from disks")),
    key<&s::huge_pages>(expert(choice(
      "huge_pages", wishes,
      "`auto` uses huge pages of the system's pool, if there are any and `node.allow_users` is "
      "empty"))),
    key<&s::lock>(
      expert(choice("lock", wishes, "`auto` locks the arena in memory, if the system allows it"))),
    key<&s::block_bytes>(expert(size(
      "block", mib, gib,
      "staging memory that a provider gets at a time, which it then lends to its operations again "
      "and again"))),
    key<&s::lease_ms>(expert(ms(
      "lease", 100, hour_ms,
      "a provider gives back staging memory that it has not used for this long. It keeps others "
      "that have none waiting no longer"))),
  });
  static constexpr gone_key gone[] = {
    {"mode", {}, "staging memory is always pinned. Remove the key"}};
  return {rows, nullptr, gone};
}

template <>
key_table<security_settings> keys_of() {
  using s = security_settings;
  static constexpr auto rows = std::to_array<bound_key<s>>({
    key<&s::secret>(plain(
      "secret", key_type::path,
      "file of the cluster's secret, which `millrace cluster secret FILE` makes; the same on every "
      "host")),
    key<&s::certificate>(plain(
      "certificate", key_type::path,
      "PEM file of this node's certificate. Certificates replace the secret")),
    key<&s::key>(plain("key", key_type::path, "PEM file of the private key of the certificate")),
    key<&s::authority>(
      plain("authority", key_type::path, "PEM file of the authority that signed all certificates")),
  });
  return {rows};
}

template <>
key_table<limits_settings> keys_of() {
  using s = limits_settings;
  static constexpr auto rows = std::to_array<bound_key<s>>({
    key<&s::request_timeout_ms>(expert(ms(
      "request_timeout", 1, day_ms,
      "how long a provider works on a request that gives no timeout"))),
    key<&s::request_timeout_max_ms>(expert(
      ms("request_timeout_max", 1, day_ms, "the longest timeout that a request may ask for"))),
    key<&s::progress_timeout_ms>(expert(ms(
      "progress_timeout", 1, day_ms,
      "time that a process has to move a portion of its tensors, of 64 MiB at most, and a second "
      "more for each MiB; then the operation fails"))),
    key<&s::stores_max>(expert(
      count("stores_max", 1, 65'536, "stores in flight in each provider, which processes share"))),
    key<&s::loads_max>(expert(
      count("loads_max", 1, 65'536, "loads in flight in each provider, which processes share"))),
    key<&s::queued_max>(expert(count(
      "queued_max", 0, 1'048'576,
      "stores that wait in each provider, which processes share; as many loads, and as many "
      "restores and verifications, may wait, too. A provider answers `busy` to more"))),
    key<&s::requests_max>(expert(count(
      "requests_max", 16, 1'048'576,
      "requests of all kinds under way at a node, which processes share. A sixteenth is kept for "
      "root and the service's own user; a node answers `busy` to more"))),
    key<&s::requests_bytes_max>(used_as(
      key_use::for_peers,
      expert(size(
        "requests_size", 64 * mib, 1024 * gib,
        "total size of these requests as received, shared by all processes. A sixteenth is kept, "
        "as of the requests, but not of `channel.frame_max`; a node answers `busy` to more")))),
    key<&s::windows_max>(
      expert(count("windows_max", 1, 1'024, "windows in flight of each operation"))),
    key<&s::box_runs_max>(expert(count(
      "box_runs_max", 1, 1'073'741'824,
      "runs of bytes that the boxes of one load may have together; a load of more is refused. The "
      "loads of a provider, which processes share, keep at most as many ranges, of about 100 bytes "
      "each: the runs of a box that are less than 256 KiB apart are one range. It answers "
      "`busy` to more"))),
    key<&s::shutdown_timeout_ms>(expert(ms(
      "shutdown_timeout", 0, hour_ms,
      "how long operations in flight may take to finish at shutdown"))),
    key<&s::watches_max>(expert(count(
      "watches_max", 0, 1'048'576,
      "watches of models that wait in each provider, which processes share; as many of "
      "checkpoints may wait, too. A provider answers `busy` to more"))),
  });
  return {rows, [](const s& o) -> std::optional<misfit> {
            if (o.request_timeout_ms <= o.request_timeout_max_ms)
              return {};
            return misfit{"request_timeout", "must not be above", "request_timeout_max"};
          }};
}

template <>
key_table<checkpoint_settings> keys_of() {
  using s = checkpoint_settings;
  static constexpr auto rows = std::to_array<bound_key<s>>({
    key<&s::registrations_max>(expert(count(
      "registrations_max", 1, 65'536,
      "shards of running jobs in each provider, which processes share"))),
    key<&s::saves_queued_max>(expert(count(
      "saves_queued_max", 0, 1'024, "saves of one shard that wait behind the one in flight"))),
    key<&s::slot_wait_ms>(expert(ms(
      "slot_wait", 1, day_ms,
      "time that a save waits for a slot, while other ranks have yet to complete an earlier step "
      "or versions are being read; then it fails with `busy`, which names them"))),
    key<&s::extra_bytes_max>(expert(size(
      "extra_max", 0, 256 * mib,
      "bytes of the user that one save of a shard may bring beside the tensors; they are kept with "
      "the version. 0: none"))),
    key<&s::staging_piece_bytes>(expert(
      size("staging_piece", mib, gib, "size of one piece of the staging memory for snapshots"))),
    key<&s::staging_pieces>(expert(count(
      "staging_pieces", 1, 4'096,
      "pieces of staging memory for snapshots in each provider, which processes share. A shard "
      "that fits in half of them is staged after one copy"))),
    key<&s::repack_below_percent>(expert(count(
      "repack_below", 0, 100,
      "percent of a provider's space: with less free, `repack: when_low` reclaims space"))),
  });
  return {rows};
}

template <>
key_table<client_settings> keys_of() {
  using s = client_settings;
  static constexpr auto rows = std::to_array<bound_key<s>>({
    key<&s::staging_bytes>(expert(size(
      "staging", mib, 16 * tib,
      "memory of a client for snapshots of stores. What does not fit is read from the tensors "
      "themselves"))),
    key<&s::request_timeout_ms>(
      expert(ms("request_timeout", 1, day_ms, "timeout of a request that gives none"))),
    key<&s::connect_timeout_ms>(
      expert(ms("connect_timeout", 1, hour_ms, "longest wait for a connection"))),
    key<&s::reconnect_backoff_min_ms>(
      expert(ms("reconnect_backoff_min", 1, hour_ms, "first wait before reconnecting"))),
    key<&s::reconnect_backoff_max_ms>(expert(ms(
      "reconnect_backoff_max", 1, hour_ms,
      "longest wait before reconnecting; the wait doubles until then"))),
    key<&s::layer_cache_entries>(expert(count(
      "layer_cache", 0, 16'777'216,
      "layer descriptions that a client keeps; and as many tensors and layers of models, so that a "
      "load by name need not ask for them"))),
    key<&s::mover_nice>(expert(count(
      "mover_nice", 0, 19,
      "by how much the priority of the threads that copy is below that of the program (a nice "
      "value), and that of the thread which makes `client.staging`. While training uses every "
      "core, they copy where its threads wait for one another. What the program waits for "
      "(`fence()`, `close()`, loads, restores) is copied by"
      " other threads with the priority of the program"))),
    key<&s::mover_patience_ms>(expert(ms(
      "mover_patience", 1, day_ms,
      "after copies have been unfinished for this long, threads with the priority of the "
      "program copy: another program may use every core. Set it above the time of an iteration."
      " It holds for a node, too, with `node.mover_nice` above 0"))),
    key<&s::bind_readers>(expert(boolean(
      "bind_readers",
      "while a loader reads for a GPU, the threads that copy stay on the processors near it; while "
      "one reads from other hosts by RDMA, on those near the RDMA devices in use. They use none "
      "that they might not use before. Without such a loader, `transport.bind_movers` holds"))),
    key<&s::trust_users>(expert(plain(
      "trust_users", key_type::users,
      "users (names or numbers) whose services a client talks to at Unix sockets, besides root and "
      "its own user. A service that runs as a user of its own needs it in its clients' files"))),
  });
  return {rows, [](const s& o) -> std::optional<misfit> {
            if (o.reconnect_backoff_min_ms <= o.reconnect_backoff_max_ms)
              return {};
            return misfit{"reconnect_backoff_min", "must not be above", "reconnect_backoff_max"};
          }};
}

template <>
key_table<provider_settings> keys_of() {
  using s = provider_settings;
  static constexpr auto rows = std::to_array<bound_key<s>>({
    key<&s::name>(
      required(plain("name", key_type::name, "the provider's name, unique in its cluster"))),
    // The schema adds the kinds.
    key<&s::bucket>(choice("bucket", {}, "the kind of the bucket: where models rest")),
    key<&s::group>(plain(
      "group", key_type::name, "the provider's group; models are spread over a group's providers")),
    key<&s::checksums>(
      expert(boolean("checksums", "compare every load with the checksums of the store"))),
    key<&s::weight>(expert(count(
      "weight", 1, member_weight_max,
      "the provider's share of its group's models, relative to the other providers"))),
    key<&s::staging_percent>(expert(count(
      "staging_percent", 1, 100,
      "the most that the provider may hold of `staging.size`. Up to this, providers that are short "
      "of it get equal shares"))),
    key<&s::id>(expert(plain(
      "id", key_type::name,
      "the id by which models are placed; without it, the name. A bucket keeps its first id when "
      "the provider is renamed. A bucket that ends with its process gets the same id after a "
      "restart by this key only"))),
  });
  return {rows};
}

template <>
key_table<cluster_settings> keys_of() {
  using s = cluster_settings;
  static constexpr auto rows = std::to_array<bound_key<s>>({
    key<&s::hosts>(choice(
      "hosts", host_sources,
      "hosts of the nodes without `host`. `names`: each node runs on the host of its name. `job`: "
      "the nodes are dealt out over the hosts of the Slurm job that reads the file, in order")),
    key<&s::port>(expert(count(
      "port", 1, 65'535,
      "port of nodes without `listen`. Of several nodes on one host it is the first one's port; "
      "the others take the next ports"))),
  });
  static constexpr gone_key gone[] = {
    {"hosts", "auto",
     "use 'job' if the nodes run on the hosts of the Slurm job, and 'names', the default, if not"}};
  return {rows, nullptr, gone};
}

template <>
key_table<cluster_node> keys_of() {
  using s = cluster_node;
  static constexpr auto rows = std::to_array<bound_key<s>>({
    key<&s::name>(
      required(plain("name", key_type::name, "the node's name; `serve --node NAME` runs it"))),
    key<&s::listen>(plain(
      "listen", key_type::addresses,
      "as `node.listen`. By default, with `security`, also `tls://HOST:PORT`")),
    key<&s::host>(plain("host", key_type::host, "as `node.host`")),
  });
  return {rows};
}

namespace {

template <auto Member>
top_section own(std::string_view name) {
  using options = std::remove_reference_t<decltype(std::declval<settings&>().*Member)>;
  return {section_of<options>(name), [](settings& all) -> void* { return &(all.*Member); }};
}

void append(
  std::vector<documented_key>& out, const section& s, std::string_view name,
  std::string_view kind = {}) {
  for (std::size_t i = 0; i < s.keys.size(); ++i) {
    documented_key added{name, s.keys[i], s.initial[i], {}, true};
    auto same = [&](auto& known) {
      return known.section == name && known.spec.name == added.spec.name &&
        known.spec.doc == added.spec.doc && known.initial == added.initial &&
        known.spec.min == added.spec.min && known.spec.max == added.spec.max;
    };
    // A key that several kinds share is listed once.
    auto known = std::find_if(out.begin(), out.end(), same);
    if (known == out.end())
      known = out.insert(out.end(), std::move(added));
    if (!kind.empty())
      known->only_for.push_back(kind);
  }
}

} // namespace

std::string documented_key::path() const {
  return std::string{section} + "." + std::string{spec.name};
}

schema::schema(
  const std::vector<section>& of_rooms, std::vector<bucket_section> buckets,
  joint_check check_jointly)
  : buckets_(std::move(buckets)), check_jointly_(check_jointly),
    provider_(section_of<provider_settings>("providers[]")),
    cluster_(section_of<cluster_settings>("cluster")),
    cluster_entry_(section_of<cluster_node>("cluster.nodes[]")) {
  sections_ = {own<&settings::node>("node"), own<&settings::staging>("staging")};
  for (auto& s : of_rooms)
    sections_.push_back({s, nullptr});
  for (auto& s :
       {own<&settings::security>("security"), own<&settings::limits>("limits"),
        own<&settings::checkpoints>("checkpoints"), own<&settings::client>("client")})
    sections_.push_back(s);
  for (auto& b : buckets_)
    bucket_names_.push_back(b.keys.name);
  provider_.keys[*provider_.number_of("bucket")].choices = bucket_names_;
}

const bucket_section* schema::bucket(std::string_view name) const noexcept {
  for (auto& b : buckets_)
    if (name.empty() || b.keys.name == name)
      return &b;
  return nullptr;
}

std::span<const key_spec> schema::keys_of_kind(const provider_settings& provider) const noexcept {
  auto* kind = bucket(provider.bucket);
  return kind ? std::span<const key_spec>{kind->keys.keys} : std::span<const key_spec>{};
}

const key_spec* schema::key_of(const provider_settings& provider, key_use use) const noexcept {
  auto keys = keys_of_kind(provider);
  auto found = std::ranges::find(keys, use, &key_spec::use);
  return found == keys.end() ? nullptr : &*found;
}

std::optional<value> schema::find(const provider_settings& provider, key_use use) const {
  auto* key = key_of(provider, use);
  return key ? find(provider, key->name) : std::nullopt;
}

std::optional<value> schema::find(const provider_settings& provider, std::string_view key) const {
  auto* kind = bucket(provider.bucket);
  auto number = kind ? kind->keys.number_of(key) : std::nullopt;
  return number ? std::optional{kind->keys.get(kind->keys.find(provider.options), *number)}
                : std::nullopt;
}

std::vector<std::pair<std::string, value>> schema::find(const settings& all, key_use use) const {
  auto copy = all;
  std::vector<std::pair<std::string, value>> out;
  for (auto& s : sections_)
    for (std::size_t i = 0; i < s.keys.keys.size(); ++i)
      if (s.keys.keys[i].use == use)
        out.emplace_back(
          fmt::format("{}.{}", s.keys.name, s.keys.keys[i].name), s.keys.get(s.edit(copy), i));
  return out;
}

std::vector<documented_key> schema::keys() const {
  std::vector<documented_key> all;
  for (auto& s : sections_)
    append(all, s.keys, s.keys.name);
  append(all, provider_, provider_.name);
  for (auto& b : buckets_)
    append(all, b.keys, provider_.name, b.keys.name);
  for (auto& key : all) {
    key.of_default_kind = key.only_for.empty() || key.only_for.front() == bucket_names_.front();
    if (key.only_for.size() == buckets_.size())
      key.only_for.clear();
  }
  append(all, cluster_, cluster_.name);
  append(all, cluster_entry_, cluster_entry_.name);
  return all;
}

std::vector<std::string_view> schema::top_level_keys() const {
  std::vector<std::string_view> names;
  for (auto& s : sections_)
    names.push_back(s.keys.name);
  names.insert(names.end(), {"providers", "cluster"});
  return names;
}

} // namespace millrace::config
