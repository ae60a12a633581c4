// `millrace models verify`: compares the models of a bucket at rest with their checksums. Added by
// `models_command`.
#pragma once

#include <millrace/tools/command.hpp>

namespace millrace::tools {

void add_models_verify(CLI::App& models, invocation& call);

} // namespace millrace::tools
