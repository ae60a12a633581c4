// The table of commands, and the errors for arguments that no command understands.
#include <millrace/config/nearest.hpp>
#include <millrace/config/units.hpp>
#include <millrace/tools/command.hpp>
#include <millrace/tools/run.hpp>
#include <millrace/version.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ostream>

namespace millrace::tools {

namespace {

// In the order of `millrace --help`.
constexpr std::array commands = {add_serve_command,       add_status_command, add_models_command,
                                 add_checkpoints_command, add_data_command,   add_pool_command,
                                 add_cluster_command,     add_config_command, add_doctor_command};

// Returns "no command 'frob' in models". The parser itself only says that a command is missing.
std::string unknown_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  auto* at = &app;
  for (auto& argument : arguments) {
    auto below = at->get_subcommands([](const CLI::App*) { return true; });
    auto found =
      std::find_if(below.begin(), below.end(), [&](auto* c) { return c->get_name() == argument; });
    if (found != below.end()) {
      at = *found;
      continue;
    }
    if (below.empty() || argument.starts_with('-'))
      return {};
    std::vector<std::string> names;
    names.reserve(below.size());
    for (auto* command : below)
      names.push_back(command->get_name());
    return fmt::format(
      "no command '{}'{}", argument,
      config::did_you_mean(argument, {std::vector<std::string_view>{names.begin(), names.end()}}));
  }
  return {};
}

// Returns "no option --cofig; did you mean '--config'?" for the first option that the command named
// by the arguments does not have.
std::string unknown_option(const CLI::App& app, const std::vector<std::string>& arguments) {
  auto* at = &app;
  for (auto& argument : arguments)
    for (auto* below : at->get_subcommands([](const CLI::App*) { return true; }))
      if (below->get_name() == argument) {
        at = below;
        break;
      }
  std::vector<std::string> known{"--help"};
  for (auto* option : at->get_options())
    for (auto& name : option->get_lnames())
      known.push_back("--" + name);
  for (auto& argument : arguments) {
    auto name = argument.substr(0, argument.find('='));
    if (!name.starts_with("--") || name == "--")
      continue;
    if (std::find(known.begin(), known.end(), name) == known.end())
      return fmt::format(
        "no option {}{}", name,
        config::did_you_mean(name, {std::vector<std::string_view>{known.begin(), known.end()}}));
  }
  return {};
}

// Prints the first line of the parser's message, and where to read on.
int report_usage(invocation& call, const CLI::App& app, const CLI::ParseError& error) {
  auto why = unknown_command(app, call.arguments);
  if (why.empty() && dynamic_cast<const CLI::ExtrasError*>(&error))
    why = unknown_option(app, call.arguments);
  if (why.empty())
    why = error.what();
  why.resize(std::min(why.find('\n'), why.size()));
  call.json |=
    std::find(call.arguments.begin(), call.arguments.end(), "--json") != call.arguments.end();
  return report(call, {{errc::invalid_argument, why + "; see millrace --help"}, exit_usage});
}

} // namespace

CLI::Validator whole_number() {
  return {
    [](std::string& text) {
      auto number = config::parse_count(text);
      return number ? std::string{} : number.error().detail();
    },
    ""};
}

void add_commands(CLI::App& app, invocation& call) {
  app.name("millrace");
  app.description("Moves tensors beside training: stores, loads and keeps models.");
  app.set_version_flag("--version", std::string{"millrace "} + version);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  for (auto add : commands)
    add(app, call);
}

int run(std::vector<std::string> arguments, std::ostream& out, std::ostream& err) {
  CLI::App app;
  invocation call{out, err, arguments};
  add_commands(app, call);
  try {
    std::reverse(arguments.begin(), arguments.end());
    app.parse(std::move(arguments));
  } catch (const CLI::Success& wanted) {
    return app.exit(wanted, out, err);
  } catch (const CLI::ParseError& error) {
    return report_usage(call, app, error);
  }
  try {
    auto code = call.chosen();
    out.flush();
    return code;
  } catch (const std::exception& error) {
    return report(call, {{errc::internal, error.what()}, exit_failed});
  }
}

} // namespace millrace::tools
