// Walks the document along the table of keys.
#include <millrace/config/nearest.hpp>
#include <millrace/config/read.hpp>
#include <millrace/config/schema.hpp>
#include <millrace/config/units.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>

namespace millrace::config {

namespace {

std::string joined(std::span<const std::string_view> words) {
  std::string text;
  for (auto word : words)
    text += (text.empty() ? "" : ", ") + std::string{word};
  return text;
}

std::string_view kind_name(node_kind kind) {
  switch (kind) {
  case node_kind::null:
    return "nothing";
  case node_kind::scalar:
    return "a single value";
  case node_kind::list:
    return "a list";
  case node_kind::map:
    return "a group of keys";
  }
  return "something else";
}

bool is_list(key_type type) {
  return type == key_type::choices || type == key_type::users || type == key_type::addresses ||
    type == key_type::endpoints || type == key_type::devices;
}

std::size_t entries_max(key_type type) {
  switch (type) {
  case key_type::addresses:
  case key_type::endpoints:
    return addresses_max;
  case key_type::devices:
    return devices_max;
  default:
    return users_max;
  }
}

tl::unexpected<status> refuse(std::string what) {
  return fail(errc::invalid_argument, std::move(what));
}

result<value> read_name(const std::string& text) {
  auto allowed = [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
      c == '_' || c == '-';
  };
  if (
    text.empty() || text.size() > name_bytes_max || !std::all_of(text.begin(), text.end(), allowed))
    return refuse(
      "'" + shown(text) + "' is not a name: 1 to " + std::to_string(name_bytes_max) +
      " of A-Z a-z 0-9 . _ -");
  return value{text, 0, {}};
}

result<value> read_path(const std::string& text) {
  constexpr std::size_t path_bytes_max = 4095;
  auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (
    text.empty() || text.size() > path_bytes_max || std::any_of(text.begin(), text.end(), control))
    return refuse("'" + shown(text) + "' is not a path");
  return value{text, 0, {}};
}

result<value> read_checked(const std::string& text, status (*check)(std::string_view)) {
  if (auto bad = check(text); !bad.ok())
    return fail(std::move(bad));
  return value{text, 0, {}};
}

result<value> read_mode(const std::string& text) {
  value v{text, 0, {}};
  auto end = text.data() + text.size();
  auto [rest, bad] = std::from_chars(text.data(), end, v.number, 8);
  if (bad != std::errc{} || rest != end || v.number > 0777)
    return refuse("'" + shown(text) + "' is not a mode such as 0600 or 0666");
  return v;
}

result<value> read_boolean(const std::string& text) {
  if (text == "true" || text == "false")
    return value{text, text == "true" ? 1u : 0u, {}};
  std::string folded;
  for (unsigned char c : text.substr(0, 8))
    folded += static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
  std::string meant;
  if (folded == "true" || folded == "yes" || folded == "on" || folded == "1")
    meant = "; did you mean 'true'?";
  else if (folded == "false" || folded == "no" || folded == "off" || folded == "0")
    meant = "; did you mean 'false'?";
  return refuse("'" + shown(text) + "' is neither true nor false" + meant);
}

result<value> read_choice(const key_spec& key, const std::string& text) {
  auto found = std::find(key.choices.begin(), key.choices.end(), text);
  if (found == key.choices.end())
    return refuse(
      "'" + shown(text) + "' is not one of " + joined(key.choices) +
      did_you_mean(text, key.choices));
  return value{text, static_cast<std::uint64_t>(found - key.choices.begin()), {}};
}

status check_device(std::string_view text) {
  auto port = text.find(':');
  auto name = text.substr(0, port);
  auto allowed = [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.';
  };
  bool port_is_number = port == text.npos ||
    (port + 1 < text.size() && text.size() - port <= 4 &&
     text.find_first_not_of("0123456789", port + 1) == text.npos);
  if (
    name.empty() || name.size() > name_bytes_max ||
    !std::all_of(name.begin(), name.end(), allowed) || !port_is_number)
    return {
      errc::invalid_argument, "'" + shown(text) + "' is not a device such as mlx5_0 or mlx5_0:1"};
  return {};
}

result<value> read_user(const std::string& text) {
  auto odd = [](unsigned char c) { return c <= 0x20 || c == ':' || c == '/' || c == 0x7f; };
  if (text.empty() || text.size() > 255 || std::any_of(text.begin(), text.end(), odd))
    return refuse("'" + shown(text) + "' is not the name or number of a user");
  return value{text, 0, {}};
}

std::string formatted(const key_spec& key, std::uint64_t number) {
  switch (key.type) {
  case key_type::size:
    return format_size(number);
  case key_type::duration_ms:
    return format_duration_us(number * 1000);
  case key_type::duration_us:
    return format_duration_us(number);
  default:
    return std::to_string(number);
  }
}

result<value> read_number(const key_spec& key, const std::string& raw) {
  auto text = shown(raw);
  bool counts = key.type == key_type::count || key.type == key_type::count_or_auto;
  auto number = counts           ? parse_count(text)
    : key.type == key_type::size ? parse_size(text)
                                 : parse_duration_us(text);
  if (!number)
    return fail(std::move(number.error()));
  if (key.type == key_type::duration_ms) {
    if (*number % 1000 != 0)
      return refuse("'" + text + "' is finer than this duration, which counts milliseconds");
    *number /= 1000;
  }
  if (*number < key.min)
    return refuse("'" + text + "' is below the least allowed, " + formatted(key, key.min));
  if (*number > key.max)
    return refuse("'" + text + "' is above the most allowed, " + formatted(key, key.max));
  return value{raw, *number, {}};
}

result<value> read_scalar(const key_spec& key, const std::string& text) {
  switch (key.type) {
  case key_type::name:
    return read_name(text);
  case key_type::path:
    return read_path(text);
  case key_type::addresses:
    return read_checked(text, check_address);
  case key_type::host:
    return read_checked(text, check_host);
  case key_type::mode:
    return read_mode(text);
  case key_type::boolean:
    return read_boolean(text);
  case key_type::choice:
  case key_type::choices:
    return read_choice(key, text);
  case key_type::users:
    return read_user(text);
  case key_type::endpoints:
    return read_checked(text, check_endpoint);
  case key_type::devices:
    return read_checked(text, check_device);
  case key_type::boolean_or_auto:
    return text == "auto" ? value{text, 0, {}} : read_boolean(text);
  case key_type::count_or_auto:
    if (text == "auto")
      return value{text, 0, {}};
    break;
  case key_type::count:
  case key_type::size:
  case key_type::duration_ms:
  case key_type::duration_us:
    break;
  }
  return read_number(key, text);
}

class reader {
public:
  explicit reader(const document& doc) : doc_(doc) {}

  result<draft> read() {
    if (auto bad = top_level(doc_.root()); !bad.ok())
      return fail(std::move(bad));
    return std::move(out_);
  }

private:
  status top_level(const document_node& root) {
    return each_key(root, "", [&](auto& key, auto& node) -> status {
      auto& values = out_.values;
      if (key == "node")
        return section(node, key, values.node);
      if (key == "staging")
        return section(node, key, values.staging);
      if (key == "transport")
        return section(node, key, values.transport);
      if (key == "shm")
        return section(node, key, values.shm);
      if (key == "tcp")
        return section(node, key, values.tcp);
      if (key == "verbs")
        return section(node, key, values.verbs);
      if (key == "staged")
        return section(node, key, values.staged);
      if (key == "channel")
        return section(node, key, values.channel);
      if (key == "security")
        return section(node, key, values.security);
      if (key == "limits")
        return section(node, key, values.limits);
      if (key == "checkpoints")
        return section(node, key, values.checkpoints);
      if (key == "client")
        return section(node, key, values.client);
      if (key == "providers")
        return providers(node, key, values.providers);
      if (key == "cluster")
        return cluster(node);
      return unknown_key(key, out_.place_of(key), "the configuration", top_level_keys());
    });
  }

  // Calls `read_one(key, node)` for every key of a map, in the order of the file; the key's path is
  // `prefix` + key. A map that is not there at all has no keys.
  template <class ReadOne>
  status each_key(const document_node& map, const std::string& prefix, ReadOne read_one) {
    if (map.kind == node_kind::null)
      return {};
    if (map.kind != node_kind::map)
      return mismatch(map, prefix, "a group of keys");
    for (std::size_t i = 0; i + 1 < map.children.size(); i += 2) {
      auto& key = doc_[map.children[i]];
      // A name that is no key may be anything, and as long as it likes.
      out_.places.insert_or_assign(prefix + shown(key.text), key.at);
      if (auto bad = read_one(key.text, doc_[map.children[i + 1]]); !bad.ok())
        return bad;
    }
    return {};
  }

  template <class Section>
  status section(const document_node& map, const std::string& path, Section& out) {
    return keys(map, path, out, {}, [](auto&, auto&) { return status{}; });
  }

  // Reads the keys of the table, leaves those named in `others` to `read_other`.
  template <class Section, class ReadOther>
  status keys(
    const document_node& map, const std::string& path, Section& out,
    std::span<const std::string_view> others, ReadOther read_other) {
    auto prefix = path + ".";
    auto table = keys_of<Section>();
    auto bad = each_key(map, prefix, [&](auto& key, auto& node) -> status {
      if (std::find(others.begin(), others.end(), key) != others.end())
        return read_other(key, node);
      auto row = std::find_if(
        table.begin(), table.end(), [&](auto& candidate) { return candidate.spec.name == key; });
      if (row == table.end()) {
        std::vector<std::string_view> known{others.begin(), others.end()};
        for (auto& candidate : table)
          known.push_back(candidate.spec.name);
        return unknown_key(key, out_.place_of(prefix + shown(key)), path, known);
      }
      auto read = read_value(row->spec, node, prefix + key);
      if (!read)
        return std::move(read.error());
      row->assign(out, std::move(*read));
      return {};
    });
    if (!bad.ok())
      return bad;
    for (auto& row : table)
      if (
        row.spec.required && row.spec.only_for.empty() &&
        !out_.has(prefix + std::string{row.spec.name}))
        return doc_.error(map.at, path + " needs the key '" + std::string{row.spec.name} + "'");
    return {};
  }

  result<value> read_value(
    const key_spec& key, const document_node& node, const std::string& path) {
    if (!is_list(key.type)) {
      if (node.kind != node_kind::scalar)
        return fail(mismatch(node, path, "a single value"));
      auto read = read_scalar(key, node.text);
      return read ? std::move(read)
                  : fail(doc_.error(node.at, path + ": " + read.error().detail()));
    }
    value all;
    if (key.type == key_type::addresses && node.kind == node_kind::scalar) {
      auto only = read_scalar(key, node.text);
      if (!only)
        return fail(doc_.error(node.at, path + ": " + only.error().detail()));
      all.list.push_back(std::move(only->text));
      return all;
    }
    if (node.kind != node_kind::list)
      return fail(mismatch(node, path, "a list"));
    for (auto child : node.children) {
      auto& item = doc_[child];
      if (item.kind != node_kind::scalar)
        return fail(mismatch(item, path, "single values in the list"));
      auto read = read_scalar(key, item.text);
      if (!read)
        return fail(doc_.error(item.at, path + ": " + read.error().detail()));
      if (std::find(all.list.begin(), all.list.end(), read->text) != all.list.end())
        return fail(doc_.error(item.at, path + ": '" + shown(read->text) + "' is given twice"));
      all.list.push_back(std::move(read->text));
      if (auto max = entries_max(key.type); all.list.size() > max)
        return fail(doc_.error(item.at, path + ": more than " + std::to_string(max) + " entries"));
    }
    if (key.type == key_type::choices && all.list.empty())
      return fail(doc_.error(node.at, path + ": needs at least one of " + joined(key.choices)));
    if (key.type == key_type::addresses && all.list.empty())
      return fail(doc_.error(node.at, path + ": needs at least one address"));
    return all;
  }

  // Calls `read_one(node, path)` for every entry of a list of groups.
  template <class ReadOne>
  status each_entry(
    const document_node& list, const std::string& path, std::size_t max, ReadOne read_one) {
    if (list.kind != node_kind::list)
      return mismatch(list, path, "a list");
    if (list.children.empty())
      return doc_.error(list.at, path + ": needs at least one entry");
    for (std::size_t i = 0; i < list.children.size(); ++i) {
      auto& entry = doc_[list.children[i]];
      if (i == max)
        return doc_.error(entry.at, path + ": more than " + std::to_string(max) + " entries");
      auto entry_path = path + "[" + std::to_string(i) + "]";
      out_.places.insert_or_assign(entry_path, entry.at);
      if (entry.kind != node_kind::map)
        return mismatch(entry, entry_path, "a group of keys");
      if (auto bad = read_one(entry, entry_path); !bad.ok())
        return bad;
    }
    return {};
  }

  status providers(
    const document_node& list, const std::string& path, std::vector<provider_settings>& out) {
    return each_entry(list, path, providers_max, [&](auto& entry, auto& entry_path) -> status {
      auto& provider = out.emplace_back();
      if (auto bad = section(entry, entry_path, provider); !bad.ok())
        return bad;
      return check_bucket_keys(provider, entry, entry_path);
    });
  }

  // Keys that only one kind of bucket has.
  status check_bucket_keys(
    const provider_settings& provider, const document_node& entry, const std::string& path) {
    auto bucket = to_string(provider.bucket);
    for (auto& row : keys_of<provider_settings>()) {
      auto& key = row.spec;
      if (key.only_for.empty())
        continue;
      auto key_path = path + "." + std::string{key.name};
      bool given = out_.has(key_path);
      if (given && !is_for(key, bucket))
        return doc_.error(
          out_.place_of(key_path),
          key_path + ": a " + std::string{bucket} + " bucket has no such key, only " +
            joined(key.only_for) + (key.only_for.size() == 1 ? " has" : " have"));
      if (!given && key.required && is_for(key, bucket))
        return doc_.error(
          entry.at,
          path + " needs the key '" + std::string{key.name} + "', since its bucket is " +
            std::string{bucket});
    }
    return {};
  }

  status cluster(const document_node& map) {
    static constexpr std::string_view others[] = {"nodes"};
    out_.values.is_cluster = true;
    auto bad = keys(map, "cluster", out_.values.cluster, others, [&](auto&, auto& list) {
      return each_entry(list, "cluster.nodes", nodes_max, [&](auto& entry, auto& path) {
        return cluster_entry(entry, path);
      });
    });
    if (bad.ok() && out_.values.nodes.empty())
      return doc_.error(map.at, "cluster needs the key 'nodes'");
    return bad;
  }

  status cluster_entry(const document_node& entry, const std::string& path) {
    static constexpr std::string_view others[] = {"providers"};
    cluster_node node;
    auto bad = keys(entry, path, node, others, [&](auto&, auto& list) -> status {
      // An empty list is a node without providers; a list left out is more likely forgotten.
      if (list.kind == node_kind::list && list.children.empty())
        return {};
      return providers(list, path + ".providers", node.providers);
    });
    if (bad.ok() && !out_.has(path + ".providers"))
      return doc_.error(entry.at, path + " needs the key 'providers'");
    out_.values.nodes.push_back(std::move(node));
    return bad;
  }

  status mismatch(const document_node& node, std::string path, std::string_view expected) {
    if (path.ends_with('.'))
      path.pop_back();
    return doc_.error(
      node.at,
      (path.empty() ? "the configuration" : path) + ": expected " + std::string{expected} +
        ", found " + std::string{kind_name(node.kind)});
  }

  status unknown_key(
    const std::string& key, mark at, const std::string& where,
    std::span<const std::string_view> known) {
    auto text = "unknown key '" + shown(key) + "' in " + where;
    auto hint = did_you_mean(key, known);
    // A key in the wrong place is right somewhere else.
    for (auto& elsewhere : schema())
      if (hint.empty() && elsewhere.name == key)
        hint = "; did you mean '" + path_of(elsewhere) + "'?";
    return doc_.error(at, text + (hint.empty() ? " (known: " + joined(known) + ")" : hint));
  }

  const document& doc_;
  draft out_;
};

} // namespace

mark draft::place_of(std::string_view path) const {
  for (;;) {
    if (auto found = places.find(path); found != places.end())
      return found->second;
    auto cut = path.find_last_of(".[");
    if (cut == std::string_view::npos)
      return {};
    path = path.substr(0, cut);
  }
}

result<draft> read_settings(const document& doc) { return reader{doc}.read(); }

} // namespace millrace::config
