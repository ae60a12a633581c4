// Tells whether this build has the places at which processes can be told to die. Used by tests that
// kill there.
#pragma once

#include <iostream>

namespace millrace::testing {

/// Says so where it has none.
inline bool has_kill_points() {
#if defined(MILLRACE_KILL_POINTS)
  return true;
#else
  std::cout << "skipped: kills at named points: built without MILLRACE_KILL_POINTS" << std::endl;
  return false;
#endif
}

} // namespace millrace::testing
