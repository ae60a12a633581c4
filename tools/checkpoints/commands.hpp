// `dump` and `load`, each in a file of its own; `checkpoints_command.cpp` has the others.
#pragma once

#include <millrace/tools/command.hpp>

#include <string_view>

namespace millrace::tools {

void add_dump_command(CLI::App& checkpoints, invocation& call);
void add_load_command(CLI::App& checkpoints, invocation& call);

/// Metadata by which a dumped file tells where it came from; `load` takes it out again.
inline constexpr std::string_view model_key = "millrace.model";
inline constexpr std::string_view step_key = "millrace.step";
inline constexpr std::string_view rank_key = "millrace.rank";
inline constexpr std::string_view world_size_key = "millrace.world_size";
inline constexpr std::string_view axis_key_prefix = "millrace.axis.";

} // namespace millrace::tools
