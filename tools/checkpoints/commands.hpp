// The commands `dump` and `load`, each in a file of its own.
// Called by `checkpoints_command.cpp`, which has the other commands.
#pragma once

#include <millrace/tools/command.hpp>

namespace millrace::tools {

void add_dump_command(CLI::App& checkpoints, invocation& call);
void add_load_command(CLI::App& checkpoints, invocation& call);

} // namespace millrace::tools
