// Measures the drivers that need an RDMA device on a machine that has one.
// Called by main.cpp.
#pragma once

#include <millrace/bench/transfer/stage.hpp>

#include <string>

namespace millrace::bench {

struct guest_run {
  std::string program; // such as tests/lab/guest
  std::string only;    // one section; empty: all that are measured there
  bool no_peers = false;
  std::size_t rounds = 0; // 0: the usual number for an emulated device
};

/// If this machine has no RDMA device, takes the drivers that need one out of the stage and
/// measures them by this same program in a guest. The guest's rows join the report. If no guest can
/// be started, prints that they are skipped.
void measure_in_guest(stage& s, const guest_run& how);

} // namespace millrace::bench
