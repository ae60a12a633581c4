// Prints errors and JSON, the two outputs that scripts read.
#include <millrace/actors/loader/data_options.hpp>
#include <millrace/config/units.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/text.hpp>

#include <ostream>

namespace millrace::tools {

namespace {

std::string dump(const json& document, int indent) {
  return document.dump(indent, ' ', false, json::error_handler_t::replace);
}

// Names of any length stand in errors. The reason comes last.
status shortened(const status& why) {
  constexpr std::size_t detail_max = 2000, end_max = 500;
  auto& detail = why.detail();
  if (detail.size() <= detail_max)
    return why;
  return {
    why.code(), "{} [{} bytes left out] {}", detail.substr(0, detail_max - end_max),
    detail.size() - detail_max, detail.substr(detail.size() - end_max)};
}

} // namespace

json to_json(const status& why) {
  return {{"code", to_string(why.code())}, {"detail", shortened(why).detail()}};
}

void print_json(invocation& call, const json& document) { call.out << dump(document, 2) << '\n'; }

int report(invocation& call, const failure& f) {
  if (call.json)
    call.err << dump({{"error", to_json(f.why)}}, -1) << '\n';
  else
    call.err << "millrace: " << (call.command.empty() ? "" : call.command + ": ")
             << printable(shortened(f.why).detail()) << '\n';
  call.err.flush();
  return f.code;
}

CLI::App* add_command(
  CLI::App& parent, invocation& call, const std::string& name, const std::string& what,
  std::function<int()> run) {
  auto* command = parent.add_subcommand(name, what);
  command->add_flag("--json", call.json, "print JSON");
  auto full_name = parent.get_parent() ? parent.get_name() + " " + name : name;
  command->callback([&call, full_name, run = std::move(run)] {
    call.command = full_name;
    call.chosen = run;
  });
  return command;
}

std::string describe(const config::provider_settings& provider) {
  auto& schema = configuration_schema();
  auto text = provider.name + " (" + provider.bucket;
  if (auto capacity = schema.find(provider, config::key_use::capacity))
    text += ", " + config::format_size(capacity->number);
  if (auto path = schema.find(provider, config::key_use::place))
    text += ", " + path->text;
  return text + ")";
}

std::string describe_data(const config::option_set& options) {
  auto capacity_bytes = options.of<actors::data_options>().capacity_bytes;
  return capacity_bytes == 0 ? std::string{}
                             : "data server (" + config::format_size(capacity_bytes) + ")";
}

json data_to_json(const config::option_set& options) {
  auto capacity_bytes = options.of<actors::data_options>().capacity_bytes;
  return capacity_bytes == 0 ? json{} : json{{"capacity_bytes", capacity_bytes}};
}

json to_json(const config::provider_settings& provider) {
  auto& schema = configuration_schema();
  json j = {{"name", provider.name}, {"bucket", provider.bucket}, {"group", provider.group}};
  if (auto capacity = schema.find(provider, config::key_use::capacity))
    j["capacity_bytes"] = capacity->number;
  if (auto path = schema.find(provider, config::key_use::place))
    j["path"] = path->text;
  return j;
}

} // namespace millrace::tools
