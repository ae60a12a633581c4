// The salvage of damaged storage into files. Used by `millrace pool salvage` and `millrace models
// salvage`.
#pragma once

#include <millrace/storage/at_rest.hpp>
#include <millrace/tools/command.hpp>

#include <functional>
#include <string>

namespace millrace::tools {

using salvage_function = std::function<status(const std::string& path, storage::salvager& to)>;

/// Adds the command `salvage PATH DIRECTORY`.
void add_salvage_command(
  CLI::App& parent, invocation& call, const std::string& what, const std::string& path_help,
  salvage_function salvage);

} // namespace millrace::tools
