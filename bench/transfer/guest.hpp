// The drivers that need an RDMA device, measured where there is one. Called by main.cpp.
#pragma once

#include <millrace/bench/transfer/stage.hpp>

#include <string>

namespace millrace::bench {

struct guest_run {
  std::string program; // as tests/lab/guest
  std::string only;    // one section; empty: all that are measured there
  bool no_peers = false;
  std::size_t rounds = 0; // 0: as many as an emulated device usually gets
};

/// Takes drivers that need an RDMA device out of the stage where this machine has none, and measures them by this same
/// program in a guest; its rows join the report. Skipped aloud where no guest can be had.
void measure_in_guest(stage& s, const guest_run& how);

} // namespace millrace::bench
