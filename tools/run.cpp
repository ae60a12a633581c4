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
                                 add_cluster_command,     add_config_command, add_doctor_command,
                                 add_predict_command};

// The command that the arguments name, as far as they name one.
struct named_command {
  const CLI::App* at;
  std::string name = {};    // "models rm"; empty: none
  std::string unknown = {}; // what stands where a command should, with what may be meant
};

named_command find_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  named_command out{&app};
  for (auto& argument : arguments) {
    auto below = out.at->get_subcommands([](const CLI::App*) { return true; });
    if (below.empty() || argument.starts_with('-'))
      break;
    std::vector<std::string> names;
    names.reserve(below.size());
    for (auto* command : below)
      names.push_back(command->get_name());
    auto found = std::ranges::find(names, argument);
    if (found == names.end()) {
      out.unknown = fmt::format(
        "'{}'{}", argument,
        config::did_you_mean(
          argument, {std::vector<std::string_view>{names.begin(), names.end()}}));
      break;
    }
    out.at = below[static_cast<std::size_t>(found - names.begin())];
    out.name += (out.name.empty() ? "" : " ") + argument;
  }
  return out;
}

// Returns "no option --cofig; did you mean '--config'?" for the first option that the command does
// not have.
std::string unknown_option(const CLI::App& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> known{"--help"};
  for (auto* option : command.get_options())
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
  auto command = find_command(app, call.arguments);
  // The parser itself only says that a command is missing.
  auto why = command.unknown.empty() ? std::string{} : "no command " + command.unknown;
  if (why.empty() && dynamic_cast<const CLI::ExtrasError*>(&error))
    why = unknown_option(*command.at, call.arguments);
  if (why.empty())
    why = error.what();
  why.resize(std::min(why.find('\n'), why.size()));
  call.json |=
    std::find(call.arguments.begin(), call.arguments.end(), "--json") != call.arguments.end();
  call.command = command.name;
  auto help = "millrace " + (command.name.empty() ? "" : command.name + " ") + "--help";
  return report(call, {{errc::invalid_argument, why + "; see " + help}, exit_usage});
}

} // namespace

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  return {
    [=](std::string& text) {
      auto number = config::parse_count(text);
      if (!number)
        return number.error().detail();
      return least <= *number && *number <= most
        ? std::string{}
        : fmt::format("{} is not between {} and {}", *number, least, most);
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
