// Completions of the command line for shells. Written by `millrace_manual`.
#pragma once

#include <millrace/tools/manual/command_options.hpp>

#include <string>

namespace millrace::tools::manual {

/// Returns a script for bash-completion: commands, options, and files where an option takes one.
std::string bash_completion(const CLI::App& program);

/// Returns the same as an autoloaded function of zsh.
std::string zsh_completion(const CLI::App& program);

} // namespace millrace::tools::manual
