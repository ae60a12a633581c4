// Renders the keys for editors (JSON schema), for readers (Markdown), and as a file of defaults.
#include <millrace/config/address.hpp>
#include <millrace/config/schema.hpp>
#include <millrace/config/units.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace millrace::config {

namespace {

using json = nlohmann::ordered_json;

constexpr auto name_pattern = "^[A-Za-z0-9._-]{1,64}$";
constexpr auto address_pattern = "^(unix:/.{0,106}|tls://.+:[0-9]{1,5})$";
constexpr auto size_pattern = "^[0-9]+ ?(B|KiB|MiB|GiB|TiB)?$";
constexpr auto duration_pattern = "^(0|[0-9]+ ?(us|ms|s|m|h))$";

json default_of(const documented_key& key) {
  switch (key.spec.type) {
  case key_type::boolean:
    return key.initial.number != 0;
  case key_type::count:
    return key.initial.number;
  case key_type::choices:
  case key_type::users:
  case key_type::endpoints:
  case key_type::devices:
    return key.initial.list;
  default:
    return key.initial_text();
  }
}

json number_or(const key_spec& key, const char* pattern) {
  return {
    {"anyOf",
     {{{"type", "integer"}, {"minimum", key.min}, {"maximum", key.max}},
      {{"type", "string"}, {"pattern", pattern}}}}};
}

json list_of_texts(std::size_t max) {
  return {
    {"type", "array"},
    {"maxItems", max},
    {"uniqueItems", true},
    {"items", {{"type", "string"}, {"minLength", 1}}}};
}

json type_of(const key_spec& key) {
  switch (key.type) {
  case key_type::name:
    return {{"type", "string"}, {"pattern", name_pattern}};
  case key_type::path:
    return {{"type", "string"}, {"minLength", 1}};
  case key_type::addresses: {
    json one = {{"type", "string"}, {"pattern", address_pattern}};
    return {
      {"anyOf",
       {one,
        {{"type", "array"},
         {"minItems", 1},
         {"maxItems", addresses_max},
         {"uniqueItems", true},
         {"items", one}}}}};
  }
  case key_type::host:
    return {{"type", "string"}, {"minLength", 1}, {"maxLength", host_bytes_max}};
  case key_type::endpoints:
    return list_of_texts(addresses_max);
  case key_type::devices:
    return list_of_texts(devices_max);
  case key_type::count_or_auto:
    return {
      {"anyOf",
       {{{"type", "integer"}, {"minimum", key.min}, {"maximum", key.max}},
        {{"type", "string"}, {"const", "auto"}}}}};
  case key_type::mode:
    return {
      {"anyOf",
       {{{"type", "string"}, {"pattern", "^[0-7]{1,4}$"}}, {{"type", "integer"}, {"minimum", 0}}}}};
  case key_type::boolean:
    return {{"type", "boolean"}};
  case key_type::boolean_or_auto:
    return {{"anyOf", {{{"type", "boolean"}}, {{"type", "string"}, {"const", "auto"}}}}};
  case key_type::count:
    return {{"type", "integer"}, {"minimum", key.min}, {"maximum", key.max}};
  case key_type::size:
    return number_or(key, size_pattern);
  case key_type::duration_ms:
  case key_type::duration_us:
    return {
      {"anyOf",
       {{{"type", "integer"}, {"const", 0}}, {{"type", "string"}, {"pattern", duration_pattern}}}}};
  case key_type::choice:
    return {{"type", "string"}, {"enum", key.choices}};
  case key_type::choices:
    return {
      {"type", "array"},
      {"minItems", 1},
      {"uniqueItems", true},
      {"items", {{"type", "string"}, {"enum", key.choices}}}};
  case key_type::users:
    return {
      {"type", "array"},
      {"maxItems", users_max},
      {"uniqueItems", true},
      {"items", {{"type", {"string", "integer"}}}}};
  }
  return json::object();
}

json closed_object() {
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", json::object()}};
}

json property_of(const documented_key& key) {
  auto property = type_of(key.spec);
  property["description"] = key.spec.doc;
  if (!key.initial_text().empty())
    property["default"] = default_of(key);
  return property;
}

json section_object(const std::vector<documented_key>& keys, std::string_view section) {
  auto object = closed_object();
  for (auto& key : keys) {
    if (key.section != section)
      continue;
    auto& property = object["properties"][std::string{key.spec.name}];
    // Kinds may use one key with different meanings. Editors check the bounds of the first kind.
    if (property.is_null())
      property = property_of(key);
    else
      property["description"] =
        property["description"].get<std::string>() + "; " + std::string{key.spec.doc};
    if (key.spec.required && key.only_for.empty())
      object["required"].push_back(key.spec.name);
  }
  return object;
}

// The keys that a provider may have and must have depend on its bucket.
json provider_object(const schema& all, const std::vector<documented_key>& keys) {
  auto object = section_object(keys, "providers[]");
  for (auto& bucket : all.buckets()) {
    json needed = json::array();
    json refused = json::array();
    for (auto& [name, property] : object["properties"].items()) {
      auto number = bucket.keys.number_of(name);
      if (!number && !all.provider().number_of(name))
        refused.push_back({{"required", {name}}});
      else if (number && bucket.keys.keys[*number].required)
        needed.push_back(name);
    }
    json condition = {{"properties", {{"bucket", {{"const", bucket.keys.name}}}}}};
    // Without the key, the bucket is of the first kind.
    if (bucket.keys.name != all.bucket_names().front())
      condition["required"] = {"bucket"};
    json then = {{"required", needed}};
    if (!refused.empty())
      then["not"] = {{"anyOf", refused}};
    object["allOf"].push_back({{"if", condition}, {"then", then}});
  }
  return object;
}

json list_object(const json& items, std::size_t max) {
  return {{"type", "array"}, {"minItems", 1}, {"maxItems", max}, {"items", items}};
}

std::string_view type_name(key_type type) {
  switch (type) {
  case key_type::name:
    return "name";
  case key_type::path:
    return "path";
  case key_type::addresses:
    return "addresses";
  case key_type::host:
    return "host";
  case key_type::endpoints:
    return "list of addresses";
  case key_type::devices:
    return "list of devices";
  case key_type::count_or_auto:
    return "number";
  case key_type::mode:
    return "octal";
  case key_type::boolean:
  case key_type::boolean_or_auto:
    return "boolean";
  case key_type::count:
    return "number";
  case key_type::size:
    return "size";
  case key_type::duration_ms:
  case key_type::duration_us:
    return "duration";
  case key_type::choice:
    return "choice";
  case key_type::choices:
    return "list of choices";
  case key_type::users:
    return "list of users";
  }
  return "";
}

std::string joined(std::span<const std::string_view> words) {
  std::string text;
  for (auto word : words)
    text += (text.empty() ? "`" : ", `") + std::string{word} + "`";
  return text;
}

std::string range_of(const key_spec& key) {
  switch (key.type) {
  case key_type::name:
    return fmt::format("1 to {} of `A-Z a-z 0-9 . _ -`", name_bytes_max);
  case key_type::addresses:
    return fmt::format(
      "at most {} of `unix:/path`, path of at most {} bytes, and `tls://HOST:PORT`", addresses_max,
      socket_path_bytes_max);
  case key_type::host:
    return "a name, an IPv4 or IPv6 address";
  case key_type::endpoints:
    return fmt::format("at most {} of `NUMBER:PORT`", addresses_max);
  case key_type::devices:
    return fmt::format("at most {}", devices_max);
  case key_type::count_or_auto:
    return fmt::format("`auto`, {} to {}", key.min, key.max);
  case key_type::mode:
    return "0 to 0777";
  case key_type::boolean:
    return "`true`, `false`";
  case key_type::boolean_or_auto:
    return "`auto`, `true`, `false`";
  case key_type::count:
    return fmt::format("{} to {}", key.min, key.max);
  case key_type::size:
    return format_size(key.min) + " to " + format_size(key.max);
  case key_type::duration_ms:
    return format_duration_us(key.min * 1000) + " to " + format_duration_us(key.max * 1000);
  case key_type::duration_us:
    return format_duration_us(key.min) + " to " + format_duration_us(key.max);
  case key_type::choice:
  case key_type::choices:
    return joined(key.choices);
  case key_type::users:
    return fmt::format("at most {}", users_max);
  case key_type::path:
    break;
  }
  return "";
}

std::string default_cell(const documented_key& key) {
  auto text = key.initial_text();
  if (!text.empty())
    return "`" + text + "`";
  return key.spec.required ? "required" : key.spec.type == key_type::path ? "none" : "see meaning";
}

std::string kinds_of(const documented_key& key, std::string_view before, std::string_view between) {
  std::string text;
  for (auto kind : key.only_for)
    text.append(text.empty() ? before : between).append(kind);
  return text;
}

bool is_of_cluster(const documented_key& key) { return key.section.starts_with("cluster"); }

// Returns the default that is written: the provider of a file without any has a name.
std::string written_default(const documented_key& key) {
  return key.section == "providers[]" && key.spec.name == "name" ? default_provider_name
                                                                 : key.initial_text();
}

// A key without a default, or of another kind of bucket, is commented out.
std::string line_of(const documented_key& key) {
  auto text = written_default(key);
  bool left_out = text.empty() || !key.of_default_kind;
  auto line = std::string{left_out ? "# " : ""} + std::string{key.spec.name} + ": " + text;
  line.resize(std::max<std::size_t>(line.size() + 1, 30), ' ');
  auto kinds = kinds_of(key, "", ", ");
  return line + "# " + kinds + (kinds.empty() ? "" : ": ") + std::string{key.spec.doc};
}

} // namespace

std::string json_schema(const schema& all) {
  auto keys = all.keys();
  auto root = closed_object();
  auto& properties = root["properties"];
  for (auto key : all.top_level_keys())
    properties[std::string{key}] = section_object(keys, key);
  auto providers = list_object({{"$ref", "#/definitions/provider"}}, providers_max);
  auto node = section_object(keys, "cluster.nodes[]");
  node["properties"]["providers"] = providers;
  node["required"].push_back("providers");
  properties["providers"] = providers;
  // A node may have an empty list of providers.
  node["properties"]["providers"].erase("minItems");
  properties["cluster"]["properties"]["nodes"] = list_object(node, nodes_max);
  properties["cluster"]["required"] = {"nodes"};
  root["definitions"]["provider"] = provider_object(all, keys);
  // Each node of a cluster has its own name, address and providers.
  root["if"] = {{"required", {"cluster"}}};
  root["then"] = {
    {"properties",
     {{"providers", false},
      {"node", {{"properties", {{"name", false}, {"listen", false}, {"host", false}}}}}}}};
  json schema = {
    {"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", "Configuration of Millrace"}};
  schema.update(root);
  return schema.dump(2) + "\n";
}

std::vector<key_row> key_rows(const schema& all) {
  std::vector<key_row> rows;
  for (auto& key : all.keys()) {
    auto kinds = kinds_of(key, " (only `bucket: ", "`, `bucket: ");
    rows.push_back(
      {key.path(), type_name(key.spec.type), default_cell(key), range_of(key.spec),
       std::string{key.spec.doc} + kinds + (kinds.empty() ? "" : "`)"), key.spec.expert});
  }
  return rows;
}

std::string markdown_table(const schema& all, bool expert) {
  std::string text = "| key | type | default | range | meaning |\n|---|---|---|---|---|\n";
  for (auto& row : key_rows(all))
    if (row.expert == expert)
      text += fmt::format(
        "| `{}` | {} | {} | {} | {} |\n", row.path, row.type, row.initial, row.range, row.meaning);
  return text;
}

std::string default_yaml(const schema& all) {
  std::string text;
  std::string_view section;
  for (auto& key : all.keys()) {
    if (is_of_cluster(key))
      continue;
    bool list = key.section == "providers[]";
    bool first = std::exchange(section, key.section) != key.section;
    if (first)
      text.append(list ? "providers" : key.section).append(":\n");
    text.append(list ? first ? "  - " : "    " : "  ").append(line_of(key)).append("\n");
  }
  return text;
}

std::string default_json(const schema& all) {
  json document = json::object();
  for (auto& key : all.keys()) {
    auto text = written_default(key);
    if (is_of_cluster(key) || text.empty() || !key.of_default_kind)
      continue;
    auto& section =
      key.section == "providers[]" ? document["providers"][0] : document[std::string{key.section}];
    section[std::string{key.spec.name}] = key.initial_text().empty() ? json(text) : default_of(key);
  }
  return document.dump(2) + "\n";
}

} // namespace millrace::config
