// Checks that concern more than one key: values that follow from others, and sizes that must fit.
#include <millrace/config/address.hpp>
#include <millrace/config/read.hpp>
#include <millrace/config/units.hpp>
#include <millrace/core/assert.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>

namespace millrace::config {

namespace {

class completer {
public:
  completer(const document& doc, const schema& all, draft& d)
    : doc_(doc), schema_(all), draft_(d), values_(d.values) {}

  status run() {
    for (auto step :
         {&completer::fill_nodes, &completer::check_security, &completer::check_names,
          &completer::check_access, &completer::check_sections, &completer::check_jointly,
          &completer::check_providers})
      if (auto bad = (this->*step)(); !bad.ok())
        return bad;
    return {};
  }

private:
  bool is_cluster() const { return values_.is_cluster; }

  std::string node_path(std::size_t node) const {
    return is_cluster() ? fmt::format("cluster.nodes[{}]", node) : "node";
  }
  std::string provider_path(std::size_t node, std::size_t provider) const {
    return fmt::format("{}providers[{}]", is_cluster() ? node_path(node) + "." : "", provider);
  }

  status error(std::string_view path, const std::string& what) const {
    return doc_.error(draft_.place_of(path), what);
  }

  // Fills `nodes` with every node, and `node` and `providers` with the only node if there is one.
  status fill_nodes() {
    if (is_cluster()) {
      for (auto* key : {"node.name", "node.listen", "node.host", "providers"})
        if (draft_.has(key))
          return error(
            key,
            fmt::format(
              "{}: a file with 'cluster' does not take this key; every entry of cluster.nodes has "
              "its own",
              key));
    } else {
      if (values_.providers.empty())
        values_.providers.push_back(
          {default_provider_name, std::string{schema_.bucket_names().front()}});
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
          fmt::format("the default address {} is too long for a socket; set 'listen'", socket));
    }
    bool single = values_.nodes.size() == 1;
    values_.node.name = single ? values_.nodes[0].name : std::string{};
    values_.node.listen = single ? values_.nodes[0].listen : std::vector<std::string>{};
    values_.node.host = single ? values_.nodes[0].host : std::string{};
    values_.providers = single ? values_.nodes[0].providers : std::vector<provider_settings>{};
    return {};
  }

  // Refuses incomplete certificates, and an address on a network without a secret or certificates.
  status check_security() {
    auto& s = values_.security;
    bool some = !s.certificate.empty() || !s.key.empty() || !s.authority.empty();
    bool all = !s.certificate.empty() && !s.key.empty() && !s.authority.empty();
    if (some && !s.secret.empty())
      return error("security.secret", "security: give either a secret or certificates, not both");
    if (some && !all)
      return error(
        "security",
        "security: certificates need all three keys 'certificate', 'key' and 'authority'");
    if (s.configured())
      return {};
    for (std::size_t i = 0; i < values_.nodes.size(); ++i)
      for (auto& address : values_.nodes[i].listen)
        if (is_tls_address(address)) {
          auto path = node_path(i) + ".listen";
          return error(
            path,
            fmt::format(
              "{}: {} needs the key security.secret, the file of the cluster's secret (`millrace "
              "cluster secret FILE` makes one), or certificates",
              path, address));
        }
    return {};
  }

  // Names, ids, addresses and paths are used at most once in the whole file.
  status check_names() {
    std::map<std::string, std::string> rests; // place → its key
    std::map<std::string, std::string> taken; // "node n0" → its path
    auto claim = [&](const std::string& what, const std::string& path) -> status {
      auto [first, is_new] = taken.emplace(what, path);
      if (is_new)
        return {};
      return error(path, fmt::format("{}: {} is already taken by {}", path, what, first->second));
    };
    for (std::size_t i = 0; i < values_.nodes.size(); ++i) {
      auto& node = values_.nodes[i];
      if (auto bad = claim("the name " + node.name, node_path(i) + ".name"); !bad.ok())
        return bad;
      for (auto& address : node.addresses())
        if (auto bad = claim("the address " + address, node_path(i) + ".listen"); !bad.ok())
          return bad;
    }
    // Providers and nodes are looked up in different places, so they may share names.
    for (std::size_t i = 0; i < values_.nodes.size(); ++i)
      for (std::size_t k = 0; k < values_.nodes[i].providers.size(); ++k) {
        auto& provider = values_.nodes[i].providers[k];
        auto path = provider_path(i, k);
        if (auto bad = claim("the provider name " + provider.name, path + ".name"); !bad.ok())
          return bad;
        // A provider is known by its name until it is renamed.
        auto id = "the provider id " + (provider.id.empty() ? provider.name : provider.id);
        if (auto bad = claim(id, path + (provider.id.empty() ? ".name" : ".id")); !bad.ok())
          return bad;
        auto* key = schema_.key_of(provider, key_use::place);
        if (!key)
          continue;
        path += "." + std::string{key->name};
        auto place = place_of(schema_.find(provider, key->name)->text);
        if (auto bad = claim("the path " + shown(place), path); !bad.ok())
          return bad;
        if (auto bad = check_apart(rests, place, path); !bad.ok())
          return bad;
        rests.emplace(std::move(place), std::move(path));
      }
    return check_paths_apart(rests);
  }

  // A relative path counts from the current directory, as for `serve`.
  static std::string place_of(const std::string& text) {
    std::error_code ignored;
    auto place = std::filesystem::absolute(text, ignored).lexically_normal().string();
    return place.size() > 1 && place.ends_with('/') ? place.substr(0, place.size() - 1) : place;
  }

  // Checks that `place` neither is in one of the others nor holds it.
  status check_apart(
    const std::map<std::string, std::string>& others, const std::string& place,
    const std::string& path) const {
    auto holds = [](const std::string& outer, const std::string& inner) {
      return inner == outer || inner.starts_with(outer + "/");
    };
    for (auto& [other, its_path] : others)
      if (auto inside = holds(other, place); inside || holds(place, other))
        return error(
          path,
          fmt::format(
            "{}: {} {} {} ({})", path, shown(place), inside ? "lies inside" : "contains",
            shown(other), its_path));
    return {};
  }

  // No provider writes other files into what a provider keeps.
  status check_paths_apart(const std::map<std::string, std::string>& rests) const {
    for (std::size_t i = 0; i < values_.nodes.size(); ++i)
      for (std::size_t k = 0; k < values_.nodes[i].providers.size(); ++k) {
        auto& provider = values_.nodes[i].providers[k];
        for (auto& key : schema_.keys_of_kind(provider)) {
          if (key.use != key_use::apart)
            continue;
          auto to = schema_.find(provider, key.name);
          if (!to || to->text.empty())
            continue;
          auto path = fmt::format("{}.{}", provider_path(i, k), key.name);
          if (auto bad = check_apart(rests, place_of(to->text), path); !bad.ok())
            return bad;
        }
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
      "node.allow_users: the permissions of the socket keep these users out. Set "
      "node.socket_mode to 0666, or to 0660 if they are in the service's group; the service checks "
      "the user of every connection");
  }

  // Runs the check of one section. The error points at the key that the file gives.
  status check_section(const section& s, const void* options, const std::string& path) const {
    auto fault = s.check(options);
    if (!fault)
      return {};
    auto blamed = path + "." + std::string{fault->key};
    if (!fault->other.empty() && !draft_.has(blamed))
      blamed = path + "." + std::string{fault->other};
    return error(blamed, text_of(s, options, *fault, path));
  }

  status check_sections() {
    for (auto& s : schema_.sections())
      if (auto bad = check_section(s.keys, s.edit(values_), std::string{s.keys.name}); !bad.ok())
        return bad;
    return {};
  }

  // Runs the check of values of different sections. The error points at the key that the file
  // gives.
  status check_jointly() {
    auto fault = schema_.check_jointly(values_);
    if (!fault)
      return {};
    auto named = [&](std::string_view path) {
      auto name = path.substr(0, path.find('.'));
      auto& all = schema_.sections();
      auto s = std::ranges::find(all, name, [](auto& one) { return one.keys.name; });
      MILLRACE_ASSERT(s != all.end());
      return text_of(s->keys, s->edit(values_), path.substr(name.size() + 1), name);
    };
    return error(
      draft_.has(fault->key) ? fault->key : fault->other,
      fmt::format("{} {} {}", named(fault->key), fault->what, named(fault->other)));
  }

  status check_providers() {
    for (std::size_t i = 0; i < values_.nodes.size(); ++i) {
      // Half of what a process can map.
      constexpr std::uint64_t mapped_max = 64ull << 40;
      auto mapped = values_.staging.size_bytes;
      for (std::size_t k = 0; k < values_.nodes[i].providers.size(); ++k) {
        auto& provider = values_.nodes[i].providers[k];
        auto path = provider_path(i, k);
        auto& kind = *schema_.bucket(provider.bucket);
        auto* options = kind.keys.find(provider.options);
        if (auto bad = check_section(kind.keys, options, path); !bad.ok())
          return bad;
        auto needs = kind.needs(provider.options);
        if (auto bad = check_windows(provider, needs, path); !bad.ok())
          return bad;
        if (__builtin_add_overflow(mapped, needs.own_bytes, &mapped) || mapped > mapped_max)
          return error(
            path_of(provider, key_use::capacity, path),
            fmt::format(
              "{}: the staging memory of node {} and the memory of its providers together exceed "
              "{}",
              path_of(provider, key_use::capacity, path), values_.nodes[i].name,
              format_size(mapped_max)));
      }
    }
    return {};
  }

  // Returns the path of the provider's key with that use; of the provider if it has none.
  std::string path_of(
    const provider_settings& provider, key_use use, const std::string& path) const {
    auto* key = schema_.key_of(provider, use);
    return key ? fmt::format("{}.{}", path, key->name) : path;
  }

  status check_windows(
    const provider_settings& provider, const memory_needs& needs, const std::string& path) const {
    auto most = values_.staging.size_bytes * provider.staging_percent / 100;
    if (needs.window_bytes * values_.limits.windows_max <= most)
      return {};
    auto is_part = provider.staging_percent < 100;
    auto own =
      draft_.has("staging.size") ? "staging.size" : path_of(provider, key_use::window, path);
    return error(
      is_part ? path + ".staging_percent" : own,
      fmt::format(
        "{} ({}) cannot hold one operation of provider {}: limits.windows_max ({}) windows of {}",
        is_part ? "staging_percent of staging.size" : "staging.size", format_size(most),
        provider.name, values_.limits.windows_max, format_size(needs.window_bytes)));
  }

  const document& doc_;
  const schema& schema_;
  draft& draft_;
  settings& values_;
};

} // namespace

status complete_settings(const document& doc, const schema& all, draft& d) {
  return completer{doc, all, d}.run();
}

} // namespace millrace::config
