// The table of commands, and what becomes of arguments that none of them understands.
#include <millrace/tools/command.hpp>
#include <millrace/tools/run.hpp>
#include <millrace/version.hpp>

#include <algorithm>
#include <array>
#include <ostream>

namespace millrace::tools {

namespace {

// In the order of `millrace --help`.
constexpr std::array commands = {add_serve_command, add_status_command, add_models_command,
  add_config_command, add_doctor_command};

// The first line of what the parser says, and where to read on.
int report_usage(invocation& call, const CLI::ParseError& error) {
  std::string why = error.what();
  why.resize(std::min(why.find('\n'), why.size()));
  call.json |=
    std::find(call.arguments.begin(), call.arguments.end(), "--json") != call.arguments.end();
  return report(call, {{errc::invalid_argument, why + "; see millrace --help"}, exit_usage});
}

} // namespace

int run(std::vector<std::string> arguments, std::ostream& out, std::ostream& err) {
  CLI::App app{"Moves tensors beside training: stores, loads and keeps models.", "millrace"};
  app.set_version_flag("--version", std::string{"millrace "} + version);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  invocation call{out, err, arguments};
  for (auto add : commands)
    add(app, call);
  try {
    std::reverse(arguments.begin(), arguments.end());
    app.parse(std::move(arguments));
  } catch (const CLI::Success& wanted) {
    return app.exit(wanted, out, err);
  } catch (const CLI::ParseError& error) {
    return report_usage(call, error);
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
