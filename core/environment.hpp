// Variables of this process's environment. Read where the system, a scheduler or a launcher says
// where the process is.
#pragma once

#include <cstdlib>
#include <string>

namespace millrace {

/// Returns the value of a variable. Empty: it is not set, or to nothing.
/// Threads: any, while none changes the environment.
inline std::string environment(const char* name) {
  auto* text = std::getenv(name);
  return text ? text : "";
}

} // namespace millrace
