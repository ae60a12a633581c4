// Reads a document by the tables of keys.
#include <millrace/config/address.hpp>
#include <millrace/config/nearest.hpp>
#include <millrace/config/read.hpp>
#include <millrace/config/scalar.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace millrace::config {

namespace {

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

// A struct of options and its keys. The keys of one map may belong to several structs: those of
// every provider, and those of its kind.
struct part {
  const section* table;
  void* options;
};

class reader {
public:
  reader(const document& doc, const schema& all) : doc_(doc), schema_(all) {}

  result<draft> read() {
    if (auto bad = top_level(doc_.root()); !bad.ok())
      return fail(std::move(bad));
    return std::move(out_);
  }

private:
  status top_level(const document_node& root) {
    return each_key(root, "", [&](auto& key, auto& node) -> status {
      auto& values = out_.values;
      for (auto& s : schema_.sections())
        if (s.keys.name == key)
          return keys(node, key, {{&s.keys, s.edit(values)}});
      if (key == "providers")
        return providers(node, key, values.providers);
      if (key == "cluster")
        return cluster(node);
      return unknown_key(key, out_.place_of(key), "the configuration", schema_.top_level_keys());
    });
  }

  // Calls `read_one(key, node)` for every key of a map, in the order of the file. The key's path is
  // `prefix` + key. A missing map has no keys.
  template <class ReadOne>
  status each_key(const document_node& map, const std::string& prefix, ReadOne read_one) {
    if (map.kind == node_kind::null)
      return {};
    if (map.kind != node_kind::map)
      return mismatch(map, prefix, "a group of keys");
    for (std::size_t i = 0; i + 1 < map.children.size(); i += 2) {
      auto& key = doc_[map.children[i]];
      // An unknown key may be any text of any length.
      out_.places.insert_or_assign(prefix + shown(key.text), key.at);
      if (auto bad = read_one(key.text, doc_[map.children[i + 1]]); !bad.ok())
        return bad;
    }
    return {};
  }

  status keys(const document_node& map, const std::string& path, const std::vector<part>& parts) {
    return keys(map, path, parts, {}, [](auto&) { return status{}; });
  }

  // Reads the keys of the tables. The key named `other` goes to `read_other`.
  template <class ReadOther>
  status keys(
    const document_node& map, const std::string& path, const std::vector<part>& parts,
    std::string_view other, ReadOther read_other) {
    auto prefix = path + ".";
    auto bad = each_key(map, prefix, [&](auto& key, auto& node) -> status {
      if (key == other)
        return read_other(node);
      for (auto& p : parts)
        for (auto& gone : p.table->gone)
          if (gone.key == key && (gone.value.empty() || gone.value == node.text))
            return refuse_gone(gone, node, prefix + key);
      for (auto& p : parts)
        if (auto number = p.table->number_of(key)) {
          auto read = read_value(p.table->keys[*number], node, prefix + key);
          if (!read)
            return std::move(read.error());
          p.table->put(p.options, *number, std::move(*read));
          return {};
        }
      return refuse_key(key, path, parts, other);
    });
    if (!bad.ok())
      return bad;
    for (auto& p : parts)
      for (auto& key : p.table->keys)
        if (key.required && !out_.has(prefix + std::string{key.name}))
          return doc_.error(
            map.at,
            path + " needs the key '" + std::string{key.name} + "'" +
              (schema_.bucket(p.table->name) ? ", since its bucket is " + std::string{p.table->name}
                                             : ""));
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
        return fail(doc_.error(item.at, fmt::format("{}: more than {} entries", path, max)));
    }
    if (key.type == key_type::choices && all.list.empty())
      return fail(doc_.error(node.at, path + ": needs at least one of " + listed(key.choices)));
    if (key.type == key_type::addresses && all.list.empty())
      return fail(doc_.error(node.at, path + ": needs at least one address"));
    return all;
  }

  // Calls `read_one(node, path)` for every entry of a list of maps.
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
        return doc_.error(entry.at, fmt::format("{}: more than {} entries", path, max));
      auto entry_path = fmt::format("{}[{}]", path, i);
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
      // The kind decides which keys the entry may have, wherever it stands among them.
      auto* given = value_of(entry, "bucket");
      auto* kind = schema_.bucket(given ? std::string_view{given->text} : "");
      auto& common = schema_.provider();
      if (!kind)
        return read_value(common.keys[*common.number_of("bucket")], *given, entry_path + ".bucket")
          .error();
      provider.bucket = kind->keys.name;
      return keys(
        entry, entry_path,
        {{&common, &provider}, {&kind->keys, kind->keys.edit(provider.options)}});
    });
  }

  const document_node* value_of(const document_node& map, std::string_view key) const {
    for (std::size_t i = 0; i + 1 < map.children.size(); i += 2)
      if (doc_[map.children[i]].text == key)
        return &doc_[map.children[i + 1]];
    return nullptr;
  }

  status cluster(const document_node& map) {
    out_.values.is_cluster = true;
    auto bad =
      keys(map, "cluster", {{&schema_.cluster(), &out_.values.cluster}}, "nodes", [&](auto& list) {
        return each_entry(list, "cluster.nodes", nodes_max, [&](auto& entry, auto& path) {
          return cluster_entry(entry, path);
        });
      });
    if (bad.ok() && out_.values.nodes.empty())
      return doc_.error(map.at, "cluster needs the key 'nodes'");
    return bad;
  }

  status cluster_entry(const document_node& entry, const std::string& path) {
    cluster_node node;
    auto bad = keys(
      entry, path, {{&schema_.cluster_entry(), &node}}, "providers", [&](auto& list) -> status {
        // An empty list is a node without providers. A missing list was probably forgotten.
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

  status refuse_gone(const gone_key& gone, const document_node& node, const std::string& path) {
    if (gone.value.empty())
      return doc_.error(
        out_.place_of(path),
        path + ": this key does not exist any more; " + std::string{gone.remedy});
    return doc_.error(
      node.at,
      path + ": '" + std::string{gone.value} + "' does not exist any more; " +
        std::string{gone.remedy});
  }

  status refuse_key(
    const std::string& key, const std::string& path, const std::vector<part>& parts,
    std::string_view other) {
    auto at = out_.place_of(path + "." + shown(key));
    std::vector<std::string_view> known;
    if (!other.empty())
      known.push_back(other);
    for (auto& p : parts)
      for (auto& k : p.table->keys)
        known.push_back(k.name);
    if (parts.front().table == &schema_.provider())
      if (auto kinds = kinds_with(key); !kinds.empty())
        return doc_.error(
          at,
          path + "." + key + ": a bucket of kind " + std::string{parts.back().table->name} +
            " has no such key; these kinds have it: " + listed(kinds));
    return unknown_key(key, at, path, known);
  }

  std::vector<std::string_view> kinds_with(std::string_view key) const {
    std::vector<std::string_view> kinds;
    for (auto& b : schema_.buckets())
      if (b.keys.number_of(key))
        kinds.push_back(b.keys.name);
    return kinds;
  }

  status unknown_key(
    const std::string& key, mark at, const std::string& where,
    std::span<const std::string_view> known) {
    auto text = "unknown key '" + shown(key) + "' in " + where;
    auto hint = did_you_mean(key, known);
    // Suggests the section that has this key.
    if (hint.empty())
      for (auto& elsewhere : schema_.keys())
        if (elsewhere.spec.name == key)
          hint = "; did you mean '" + elsewhere.path() + "'?";
    return doc_.error(at, text + (hint.empty() ? " (known: " + listed(known) + ")" : hint));
  }

  const document& doc_;
  const schema& schema_;
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

result<draft> read_settings(const document& doc, const schema& all) {
  return reader{doc, all}.read();
}

} // namespace millrace::config
