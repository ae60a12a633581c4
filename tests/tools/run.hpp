// Runs the command `millrace` within the test.
// Used by the tests of this folder.
#pragma once

#include <millrace/tests/support/process.hpp>
#include <millrace/tools/run.hpp>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace millrace::testing {

inline outcome run(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  int code = tools::run(std::move(arguments), out, err);
  return {code, out.str(), err.str()};
}

} // namespace millrace::testing
