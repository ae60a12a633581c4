// What the parser knows of a command's options, as manuals and completions show it.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace millrace::tools::manual {

/// An option, an argument without a name, or both.
struct command_option {
  std::vector<std::string> names; // "-c", "--config"; empty: an argument alone
  std::string argument;           // "MODEL"; empty: only an option
  std::string value;              // "FILE"; empty: a flag, or a value without a name
  std::string meaning;
  bool takes_value = false;
  bool required = false;

  /// True if the value or the argument is the path of a file.
  bool is_path() const;
};

std::vector<command_option> options_of(const CLI::App& command);
std::vector<const CLI::App*> commands_below(const CLI::App& command);

/// Returns "millrace models rm".
std::string full_name(const CLI::App& command);

} // namespace millrace::tools::manual
