// The number of rounds of a crash test.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace millrace::testing {

/// Rounds of kills and power cuts at random: MILLRACE_CRASH_TIMES times as many as a run of all
/// tests has time for.
inline int crash_rounds(int rounds) {
  auto times = std::getenv("MILLRACE_CRASH_TIMES");
  return times ? rounds * std::max(1, std::atoi(times)) : rounds;
}

/// So many images at most are looked at until one shows a planted defect. Few instants may show it,
/// and which are drawn follows from the number of events, which is not the same in each run.
constexpr int rounds_to_find(int rounds) { return 20 * rounds; }

} // namespace millrace::testing
