// `millrace data streams`, `end` and `remove`: shows streaming sets, ends and removes them. Added
// by `data_command`.
#pragma once

#include <millrace/tools/command.hpp>

namespace millrace::tools {

void add_data_streams(CLI::App& data, invocation& call);

} // namespace millrace::tools
