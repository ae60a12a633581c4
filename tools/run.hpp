// The whole command line as one function: arguments in, text and an exit code out.
// Called by `main` and by tests.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace millrace::tools {

/// Runs `millrace ARGUMENTS...` and returns its exit code (see `exit_code`). `serve` blocks signals
/// of the process and returns when it was told to stop.
int run(std::vector<std::string> arguments, std::ostream& out, std::ostream& err);

} // namespace millrace::tools
