// `millrace config`: checks a file before a service has to refuse it, and prints the possible keys.
#include <millrace/config/effective.hpp>
#include <millrace/config/users.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/text.hpp>

#include <memory>
#include <ostream>
#include <utility>

namespace millrace::tools {

namespace {

int check_file(invocation& call, const std::string& file) {
  auto settings = load_configuration(file);
  if (!settings)
    return report(call, {settings.error(), exit_usage});
  for (auto& [key, users] :
       {std::pair{"node.allow_users", settings->node.allow_users},
        std::pair{"client.trust_users", settings->client.trust_users}})
    if (auto uids = config::uids_of(key, users); !uids)
      return report(call, {uids.error().within(file), exit_usage});
  if (call.json) {
    json nodes = json::array(), warnings = json::array();
    for (auto& node : settings->nodes) {
      json providers = json::array();
      for (auto& p : node.providers)
        providers.push_back(to_json(p));
      auto addresses = node.addresses();
      nodes.push_back(
        {{"name", node.name},
         {"address", addresses.front()},
         {"addresses", addresses},
         {"providers", providers},
         {"data", data_to_json(settings->options)}});
      for (auto& warning : warnings_about(node.providers))
        warnings.push_back(warning);
    }
    print_json(call, {{"ok", true}, {"file", file}, {"nodes", nodes}, {"warnings", warnings}});
    return exit_ok;
  }
  call.out << file << ": ok, " << counted(settings->nodes.size(), "node") << '\n';
  for (auto& node : settings->nodes) {
    call.out << "  " << node.name << " on " << joined(node.addresses()) << ":";
    for (auto& p : node.providers)
      call.out << " " << describe(p);
    if (auto data = describe_data(settings->options); !data.empty())
      call.out << " " << data;
    call.out << '\n';
    for (auto& warning : warnings_about(node.providers))
      call.out << "  warning: " << printable(warning) << '\n';
  }
  return exit_ok;
}

// Prints "KEY: VALUE  # ORIGIN" lines. Expert keys that have their defaults are left out without
// `everything`.
int show_settings(invocation& call, const std::string& file, bool everything) {
  auto& all = configuration_schema();
  auto keys =
    file.empty() ? config::effective_keys("", "defaults", all) : config::effective_keys(file, all);
  if (!keys)
    return report(call, {keys.error(), exit_usage});
  if (!everything)
    std::erase_if(*keys, [](auto& k) { return k.expert && k.origin == "default"; });
  if (call.json) {
    json list = json::array();
    for (auto& k : *keys)
      list.push_back({{"key", k.path}, {"value", k.text}, {"origin", k.origin}});
    print_json(call, {{"keys", list}});
    return exit_ok;
  }
  table lines{{"KEY", "VALUE", "FROM"}};
  for (auto& k : *keys)
    lines.add({k.path, k.text, k.origin});
  lines.print(call.out);
  return exit_ok;
}

} // namespace

void add_config_command(CLI::App& app, invocation& call) {
  auto* config = app.add_subcommand("config", "Check configurations; print defaults and schema");
  config->require_subcommand(1);
  auto [check_command, file] =
    add_command<std::string>(*config, call, "check", "Check a configuration file", check_file);
  check_command->add_option("FILE,-c,--config", *file, "the configuration")
    ->type_name("")
    ->required();
  auto shown = std::make_shared<std::string>();
  auto everything = std::make_shared<bool>(false);
  auto* show_command = add_command(
    *config, call, "show", "Print the values in effect and where they come from",
    [&call, shown, everything] { return show_settings(call, *shown, *everything); });
  show_command->add_option("FILE,-c,--config", *shown, "the configuration (default: none)")
    ->type_name("");
  show_command->add_flag("--all", *everything, "expert keys that have their defaults, too");
  add_command(*config, call, "defaults", "Print a configuration of nothing but defaults", [&call] {
    auto& all = configuration_schema();
    call.out << (call.json ? config::default_json(all) : config::default_yaml(all));
    return static_cast<int>(exit_ok);
  });
  add_command(
    *config, call, "schema", "Print the JSON schema of configurations for editors", [&call] {
      call.out << config::json_schema(configuration_schema());
      return static_cast<int>(exit_ok);
    });
}

} // namespace millrace::tools
