// Measures what needs an RDMA device on a machine that has one: a guest that emulates some.
// Used by the transfer and loader benchmarks.
#pragma once

#include <millrace/bench/common/report.hpp>

#include <string>
#include <vector>

namespace millrace::bench {

struct guest_run {
  std::string program;                // such as tests/lab/guest
  std::vector<std::string> options;   // of that program
  std::vector<std::string> arguments; // of this one, without --json
};

/// Runs this same program in a guest. Its rows join the report, and `what` is announced. If no
/// guest can be started, prints that it is skipped.
void run_in_guest(report& out, const std::string& what, const guest_run& how);

} // namespace millrace::bench
