// `millrace data verify`: compares samples with their digests, or prints digests of the order of an
// epoch. Added by `data_command`.
#pragma once

#include <millrace/tools/command.hpp>

namespace millrace::tools {

void add_data_verify(CLI::App& data, invocation& call);

} // namespace millrace::tools
