// What the table cannot say of one key alone: values that follow from others, and sizes that must
// fit.
#include <millrace/config/address.hpp>
#include <millrace/config/read.hpp>
#include <millrace/config/schema.hpp>
#include <millrace/config/units.hpp>

#include <bit>
#include <filesystem>
#include <map>

namespace millrace::config {

namespace {

class completer {
public:
  completer(const document& doc, draft& d) : doc_(doc), draft_(d), values_(d.values) {}

  status run() {
    for (auto step :
         {&completer::fill_nodes, &completer::check_security, &completer::check_names,
          &completer::check_access, &completer::check_times, &completer::check_sizes,
          &completer::check_providers})
      if (auto bad = (this->*step)(); !bad.ok())
        return bad;
    return {};
  }

private:
  bool is_cluster() const { return values_.is_cluster; }

  std::string node_path(std::size_t node) const {
    return is_cluster() ? "cluster.nodes[" + std::to_string(node) + "]" : "node";
  }
  std::string provider_path(std::size_t node, std::size_t provider) const {
    return (is_cluster() ? node_path(node) + "." : "") + "providers[" + std::to_string(provider) +
      "]";
  }

  status error(std::string_view path, const std::string& what) const {
    return doc_.error(draft_.place_of(path), what);
  }

  // Afterwards `nodes` holds every node, and `node` and `providers` the only one there is, if so.
  status fill_nodes() {
    if (is_cluster()) {
      for (auto* key : {"node.name", "node.listen", "node.host", "providers"})
        if (draft_.has(key))
          return error(
            key,
            std::string{key} +
              " is not for a file with 'cluster', where each entry of "
              "cluster.nodes has its own");
    } else {
      if (values_.providers.empty())
        values_.providers.emplace_back().name = "fast";
      values_.nodes.push_back(
        {values_.node.name, values_.node.listen, values_.providers, values_.node.host});
    }
    for (std::size_t i = 0; i < values_.nodes.size(); ++i) {
      auto& node = values_.nodes[i];
      node.listens_by_default = node.listen.empty();
      if (!node.listens_by_default)
        continue;
      auto listen = default_addresses(values_, node);
      if (!listen)
        return error("cluster.port", listen.error().detail());
      node.listen = std::move(*listen);
      if (auto& socket = node.listen.front(); !check_address(socket).ok())
        return error(
          node_path(i),
          "the default address " + socket + " is too long for a socket; set 'listen'");
    }
    bool single = values_.nodes.size() == 1;
    values_.node.name = single ? values_.nodes[0].name : std::string{};
    values_.node.listen = single ? values_.nodes[0].listen : std::vector<std::string>{};
    values_.node.host = single ? values_.nodes[0].host : std::string{};
    values_.providers = single ? values_.nodes[0].providers : std::vector<provider_settings>{};
    return {};
  }

  // A secret or certificates, whole; and no address on a network without either.
  status check_security() {
    auto& s = values_.security;
    bool some = !s.certificate.empty() || !s.key.empty() || !s.authority.empty();
    bool all = !s.certificate.empty() && !s.key.empty() && !s.authority.empty();
    if (some && !s.secret.empty())
      return error(
        "security.secret", "security: it is either a secret or certificates, here are both");
    if (some && !all)
      return error(
        "security",
        "security: certificates need the three keys 'certificate', 'key' and 'authority'");
    if (s.configured())
      return {};
    for (std::size_t i = 0; i < values_.nodes.size(); ++i)
      for (auto& address : values_.nodes[i].listen)
        if (is_tls_address(address)) {
          auto path = node_path(i) + ".listen";
          return error(
            path,
            path + ": " + address +
              " needs the key security.secret, the file of the cluster's secret (`millrace "
              "cluster secret FILE` makes one), or certificates");
        }
    return {};
  }

  // Names, addresses and directories are each used once in the whole file.
  status check_names() {
    std::map<std::string, std::string> taken; // "node n0" → its path
    auto claim = [&](const std::string& what, const std::string& path) -> status {
      auto [first, is_new] = taken.emplace(what, path);
      if (is_new)
        return {};
      return error(path, path + ": " + what + " is already taken by " + first->second);
    };
    for (std::size_t i = 0; i < values_.nodes.size(); ++i) {
      auto& node = values_.nodes[i];
      if (auto bad = claim("the name " + node.name, node_path(i) + ".name"); !bad.ok())
        return bad;
      for (auto& address : node.addresses())
        if (auto bad = claim("the address " + address, node_path(i) + ".listen"); !bad.ok())
          return bad;
    }
    // Providers and nodes are looked up in different places: they may share names.
    for (std::size_t i = 0; i < values_.nodes.size(); ++i)
      for (std::size_t k = 0; k < values_.nodes[i].providers.size(); ++k) {
        auto& provider = values_.nodes[i].providers[k];
        auto path = provider_path(i, k);
        if (auto bad = claim("the provider name " + provider.name, path + ".name"); !bad.ok())
          return bad;
        if (provider.path.empty())
          continue;
        auto directory = std::filesystem::path{provider.path + "/"}.lexically_normal().string();
        if (auto bad = claim("the directory " + shown(directory), path + ".path"); !bad.ok())
          return bad;
      }
    return {};
  }

  status check_access() {
    constexpr std::uint32_t others_may_write = 0022;
    auto mode = values_.node.socket_mode;
    if (values_.node.allow_users.empty() || (mode & others_may_write) != 0)
      return {};
    return error(
      "node.allow_users",
      "node.allow_users names users whom the permissions of the socket keep out; set "
      "node.socket_mode to 0666, then who connects is checked by name alone");
  }

  // "`low` must not be above `high`", both keys of the file.
  status ordered(
    const std::string& low_path, std::uint64_t low, const std::string& high_path,
    std::uint64_t high, std::string (*format)(std::uint64_t)) {
    if (low <= high)
      return {};
    // The key that the user wrote is the one to point at.
    auto& blamed = draft_.has(low_path) ? low_path : high_path;
    return error(
      blamed,
      low_path + " (" + format(low) + ") must not be above " + high_path + " (" + format(high) +
        ")");
  }

  status check_times() {
    auto ms = [](std::uint64_t value) { return format_duration_us(value * 1000); };
    auto& channel = values_.channel;
    if (channel.heartbeat_ms * 2 > channel.peer_timeout_ms)
      return error(
        draft_.has("channel.peer_timeout") ? "channel.peer_timeout" : "channel.heartbeat",
        "channel.peer_timeout (" + ms(channel.peer_timeout_ms) +
          ") must be at least twice channel.heartbeat (" + ms(channel.heartbeat_ms) + ")");
    auto& client = values_.client;
    auto& limits = values_.limits;
    auto& tcp = values_.tcp;
    if (auto bad = ordered(
          "limits.request_timeout", limits.request_timeout_ms, "limits.request_timeout_max",
          limits.request_timeout_max_ms, ms);
        !bad.ok())
      return bad;
    if (auto bad =
          ordered("tcp.backoff_min", tcp.backoff_min_ms, "tcp.backoff_max", tcp.backoff_max_ms, ms);
        !bad.ok())
      return bad;
    return ordered(
      "client.reconnect_backoff_min", client.reconnect_backoff_min_ms,
      "client.reconnect_backoff_max", client.reconnect_backoff_max_ms, ms);
  }

  status check_sizes() {
    auto& transport = values_.transport;
    auto& channel = values_.channel;
    if (auto bad = ordered(
          "transport.chunk", transport.chunk_bytes, "staging.size", values_.staging.size_bytes,
          format_size);
        !bad.ok())
      return bad;
    if (auto bad = ordered(
          "staged.chunk", values_.staged.chunk_bytes, "staged.size", values_.staged.size_bytes,
          format_size);
        !bad.ok())
      return bad;
    auto& verbs = values_.verbs;
    if (verbs.mtu != 0 && (verbs.mtu < 256 || !std::has_single_bit(verbs.mtu)))
      return error(
        "verbs.mtu", "verbs.mtu: packets have 256, 512, 1024, 2048 or 4096 bytes; 0 is by itself");
    return ordered(
      "channel.frame_max", channel.frame_max_bytes, "channel.send_queue_max",
      channel.send_queue_max_bytes, format_size);
  }

  status check_providers() {
    for (std::size_t i = 0; i < values_.nodes.size(); ++i) {
      // What a process can map at all, halved.
      constexpr std::uint64_t mapped_max = 64ull << 40;
      auto mapped = values_.staging.size_bytes;
      for (std::size_t k = 0; k < values_.nodes[i].providers.size(); ++k) {
        auto& provider = values_.nodes[i].providers[k];
        auto path = provider_path(i, k);
        if (provider.bucket == bucket_kind::rocksdb) {
          if (auto bad = check_windows(provider, path); !bad.ok())
            return bad;
        } else if (
          provider.bucket == bucket_kind::memory &&
          (__builtin_add_overflow(mapped, provider.capacity_bytes, &mapped) ||
           mapped > mapped_max)) {
          return error(
            path + ".capacity",
            path + ".capacity: staging and the memory buckets of node " + values_.nodes[i].name +
              " together exceed " + format_size(mapped_max));
        }
      }
    }
    return {};
  }

  status check_windows(const provider_settings& provider, const std::string& path) {
    std::uint64_t needed = provider.window_bytes * values_.limits.windows_max;
    if (needed > values_.staging.size_bytes)
      return error(
        draft_.has("staging.size") ? "staging.size" : path + ".window",
        "staging.size (" + format_size(values_.staging.size_bytes) +
          ") cannot hold one operation of provider " + provider.name + ": limits.windows_max (" +
          std::to_string(values_.limits.windows_max) + ") windows of " +
          format_size(provider.window_bytes));
    return ordered(
      path + ".inline_max", provider.inline_max_bytes, path + ".window", provider.window_bytes,
      format_size);
  }

  const document& doc_;
  draft& draft_;
  settings& values_;
};

} // namespace

status complete_settings(const document& doc, draft& d) { return completer{doc, d}.run(); }

} // namespace millrace::config
