// `millrace config`: checks a file before a service has to refuse it, and prints the possible keys.
#include <millrace/config/load.hpp>
#include <millrace/config/schema.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/text.hpp>

#include <algorithm>
#include <memory>
#include <ostream>

namespace millrace::tools {

namespace {

int check(invocation& call, const std::string& file) {
  auto settings = config::load_file(file);
  if (!settings)
    return report(call, {settings.error(), exit_usage});
  if (call.json) {
    json nodes = json::array();
    for (auto& node : settings->nodes) {
      json providers = json::array();
      for (auto& p : node.providers)
        providers.push_back(to_json(p));
      auto addresses = node.addresses();
      nodes.push_back(
        {{"name", node.name},
         {"address", addresses.front()},
         {"addresses", addresses},
         {"providers", providers}});
    }
    print_json(call, {{"ok", true}, {"file", file}, {"nodes", nodes}});
    return exit_ok;
  }
  call.out << file << ": ok, " << counted(settings->nodes.size(), "node") << '\n';
  for (auto& node : settings->nodes) {
    call.out << "  " << node.name << " on " << joined(node.addresses()) << ":";
    for (auto& p : node.providers)
      call.out << " " << describe(p);
    call.out << '\n';
  }
  return exit_ok;
}

// Returns a default as JSON: numbers, booleans and lists keep their type, everything else is text.
json default_value(const config::key_spec& key) {
  using enum config::key_type;
  std::string text{key.default_text};
  if (key.type == count)
    return std::stoull(text);
  if (key.type == boolean)
    return text == "true";
  if (key.type != choices && key.type != users && key.type != endpoints && key.type != devices)
    return text;
  json items = json::array();
  std::string item;
  for (char c : text)
    if (c == ',' || c == ']') {
      if (!item.empty())
        items.push_back(std::exchange(item, {}));
    } else if (c != '[' && c != ' ') {
      item += c;
    }
  return items;
}

// Returns a key's default. The provider's name is that of the provider that a file without any
// provider gets. Keys of other kinds of buckets appear as comments.
std::string_view default_of(const config::key_spec& key) {
  static const auto provider = config::parse("", "defaults")->providers.front();
  return key.section == "providers[]" && key.name == "name" ? provider.name : key.default_text;
}

// Returns "rocksdb, pmem".
std::string kinds_of(const config::key_spec& key) {
  std::string text;
  for (auto kind : key.only_for)
    text += (text.empty() ? "" : ", ") + std::string{kind};
  return text;
}

// A key that has no default, or belongs to another kind of bucket, is printed as a comment.
std::string line_of(const config::key_spec& key) {
  bool left_out = default_of(key).empty() || !key.only_for.empty();
  auto line = std::string{left_out ? "# " : ""} + std::string{key.name} + ": ";
  line += default_of(key);
  line.resize(std::max<std::size_t>(line.size() + 1, 30), ' ');
  line += key.only_for.empty() ? "# " : "# " + kinds_of(key) + ": ";
  return line + std::string{key.doc};
}

void print_default_yaml(std::ostream& out) {
  std::string_view section;
  for (auto& key : config::schema()) {
    if (key.section.starts_with("cluster"))
      continue;
    bool list = key.section == "providers[]";
    bool first = std::exchange(section, key.section) != key.section;
    if (first)
      out << (list ? "providers" : key.section) << ":\n";
    out << (list ? first ? "  - " : "    " : "  ") << line_of(key) << '\n';
  }
}

int print_defaults(invocation& call) {
  if (!call.json) {
    print_default_yaml(call.out);
    return exit_ok;
  }
  json document = json::object();
  for (auto& key : config::schema()) {
    if (key.section.starts_with("cluster") || default_of(key).empty() || !key.only_for.empty())
      continue;
    auto spec = key;
    spec.default_text = default_of(key);
    auto& section =
      key.section == "providers[]" ? document["providers"][0] : document[std::string{key.section}];
    section[std::string{key.name}] = default_value(spec);
  }
  print_json(call, document);
  return exit_ok;
}

} // namespace

void add_config_command(CLI::App& app, invocation& call) {
  auto* config = app.add_subcommand("config", "Check configurations; print defaults and schema");
  config->require_subcommand(1);
  auto file = std::make_shared<std::string>();
  auto* check_command =
    add_command(*config, call, "check", "Check a configuration file", [&call, file] {
      return check(call, *file);
    });
  check_command->add_option("FILE,-c,--config", *file, "the configuration")
    ->type_name("")
    ->required();
  add_command(*config, call, "defaults", "Print a configuration of nothing but defaults", [&call] {
    return print_defaults(call);
  });
  add_command(
    *config, call, "schema", "Print the JSON schema of configurations for editors", [&call] {
      call.out << config::json_schema() << '\n';
      return static_cast<int>(exit_ok);
    });
}

} // namespace millrace::tools
