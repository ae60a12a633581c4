// The table of keys for editors (JSON schema) and for readers (Markdown).
#include <millrace/config/schema.hpp>
#include <millrace/config/units.hpp>

#include <nlohmann/json.hpp>

namespace millrace::config {

namespace {

using json = nlohmann::ordered_json;

constexpr auto name_pattern = "^[A-Za-z0-9._-]{1,64}$";
constexpr auto address_pattern = "^(unix:/.{0,106}|tls://.+:[0-9]{1,5})$";
constexpr auto size_pattern = "^[0-9]+ ?(B|KiB|MiB|GiB|TiB)?$";
constexpr auto duration_pattern = "^(0|[0-9]+ ?(us|ms|s|m|h))$";

std::vector<std::string> list_of(std::string_view text) {
  std::vector<std::string> items;
  text = text.substr(1, text.size() - 2);
  while (!text.empty()) {
    auto comma = text.find(", ");
    items.emplace_back(text.substr(0, comma));
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 2);
  }
  return items;
}

json default_of(const key_spec& key) {
  switch (key.type) {
  case key_type::boolean:
    return key.default_text == "true";
  case key_type::count:
    return *parse_count(key.default_text);
  case key_type::choices:
  case key_type::users:
  case key_type::endpoints:
  case key_type::devices:
    return list_of(key.default_text);
  default:
    return key.default_text;
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

json section_object(std::string_view section) {
  auto object = closed_object();
  for (auto& key : schema()) {
    if (key.section != section)
      continue;
    auto property = type_of(key);
    property["description"] = key.doc;
    if (!key.default_text.empty())
      property["default"] = default_of(key);
    object["properties"][std::string{key.name}] = std::move(property);
    if (key.required && key.only_for.empty())
      object["required"].push_back(key.name);
  }
  return object;
}

// Which keys a provider may have, and must have, depends on its bucket.
json provider_object() {
  auto object = section_object("providers[]");
  for (auto bucket : bucket_names()) {
    json needed = json::array();
    json refused = json::array();
    for (auto& key : schema()) {
      if (!is_for(key, bucket))
        refused.push_back({{"required", {key.name}}});
      else if (key.required && !key.only_for.empty())
        needed.push_back(key.name);
    }
    json condition = {{"properties", {{"bucket", {{"const", bucket}}}}}};
    // What is not given is the first.
    if (bucket != bucket_names().front())
      condition["required"] = {"bucket"};
    object["allOf"].push_back(
      {{"if", condition}, {"then", {{"required", needed}, {"not", {{"anyOf", refused}}}}}});
  }
  return object;
}

json list_object(const json& items, std::size_t max) {
  return {{"type", "array"}, {"minItems", 1}, {"maxItems", max}, {"items", items}};
}

// "`bucket: rocksdb`, `bucket: pmem`".
std::string kinds_of(const key_spec& key) {
  std::string text;
  for (auto kind : key.only_for)
    text += (text.empty() ? "`bucket: " : ", `bucket: ") + std::string{kind} + "`";
  return text;
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
    return "1 to " + std::to_string(name_bytes_max) + " of `A-Z a-z 0-9 . _ -`";
  case key_type::addresses:
    return "at most " + std::to_string(addresses_max) + " of `unix:/path`, path of at most " +
      std::to_string(socket_path_bytes_max) + " bytes, and `tls://HOST:PORT`";
  case key_type::host:
    return "a name, an IPv4 or IPv6 address";
  case key_type::endpoints:
    return "at most " + std::to_string(addresses_max) + " of `NUMBER:PORT`";
  case key_type::devices:
    return "at most " + std::to_string(devices_max);
  case key_type::count_or_auto:
    return "`auto`, " + std::to_string(key.min) + " to " + std::to_string(key.max);
  case key_type::mode:
    return "0 to 0777";
  case key_type::boolean:
    return "`true`, `false`";
  case key_type::boolean_or_auto:
    return "`auto`, `true`, `false`";
  case key_type::count:
    return std::to_string(key.min) + " to " + std::to_string(key.max);
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
    return "at most " + std::to_string(users_max);
  case key_type::path:
    break;
  }
  return "";
}

std::string default_cell(const key_spec& key) {
  if (!key.default_text.empty())
    return "`" + std::string{key.default_text} + "`";
  return key.required ? "required" : "see meaning";
}

} // namespace

std::string json_schema() {
  auto root = closed_object();
  auto& properties = root["properties"];
  for (auto key : top_level_keys())
    properties[std::string{key}] = section_object(key);
  auto providers = list_object({{"$ref", "#/definitions/provider"}}, providers_max);
  auto node = section_object("cluster.nodes[]");
  node["properties"]["providers"] = providers;
  node["required"].push_back("providers");
  properties["providers"] = providers;
  // Empty: a node without providers.
  node["properties"]["providers"].erase("minItems");
  properties["cluster"]["properties"]["nodes"] = list_object(node, nodes_max);
  properties["cluster"]["required"] = {"nodes"};
  root["definitions"]["provider"] = provider_object();
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

std::string markdown_table() {
  std::string text = "| key | type | default | range | meaning |\n|---|---|---|---|---|\n";
  for (auto& key : schema()) {
    auto meaning = std::string{key.doc};
    if (!key.only_for.empty())
      meaning += " (only " + kinds_of(key) + ")";
    text += "| `" + path_of(key) + "` | " + std::string{type_name(key.type)} + " | " +
      default_cell(key) + " | " + range_of(key) + " | " + meaning + " |\n";
  }
  return text;
}

} // namespace millrace::config
