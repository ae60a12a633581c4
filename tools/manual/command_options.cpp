// Reads the parser's options.
#include <millrace/tools/manual/command_options.hpp>

namespace millrace::tools::manual {

bool command_option::is_path() const {
  auto names_path = [](const std::string& word) {
    return word == "FILE" || word == "PATH" || word == "DIR";
  };
  return names_path(value) || names_path(argument);
}

std::vector<command_option> options_of(const CLI::App& command) {
  std::vector<command_option> all;
  for (auto* option : command.get_options()) {
    if (option->get_group().empty())
      continue; // hidden
    auto& one = all.emplace_back();
    for (auto& name : option->get_snames())
      one.names.push_back("-" + name);
    for (auto& name : option->get_lnames())
      one.names.push_back("--" + name);
    if (option->get_positional())
      one.argument = option->get_name(true);
    one.takes_value = option->get_items_expected_max() > 0;
    if (one.takes_value)
      one.value = option->get_type_name();
    one.meaning = option->get_description();
    one.required = option->get_required();
  }
  return all;
}

std::vector<const CLI::App*> commands_below(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

std::string full_name(const CLI::App& command) {
  auto* parent = command.get_parent();
  return parent ? full_name(*parent) + " " + command.get_name() : command.get_name();
}

} // namespace millrace::tools::manual
