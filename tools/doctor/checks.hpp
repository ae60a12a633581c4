// The single checks. Each file in this folder has the checks of one subject.
// Called by doctor.cpp, which puts them in order.
#pragma once

#include <millrace/tools/doctor/doctor.hpp>

namespace millrace::tools::doctor {

inline finding ok(std::string value) { return {{}, check_state::ok, std::move(value), {}}; }
inline finding note(std::string value, std::string remedy) {
  return {{}, check_state::note, std::move(value), std::move(remedy)};
}
inline finding missing(std::string value, std::string remedy) {
  return {{}, check_state::missing, std::move(value), std::move(remedy)};
}

// processor_checks.cpp
finding check_kernel(const machine& m);
finding check_cores(const machine& m);
finding check_numa(const machine& m);

// memory_checks.cpp
finding check_memory(const machine& m);
finding check_transparent_huge_pages(const machine& m);
finding check_shared_huge_pages(const machine& m);
finding check_huge_page_pool(const machine& m);
finding check_locked_memory(const machine& m);
finding check_shared_memory(const machine& m);

// process_checks.cpp
finding check_ptrace(const machine& m);
finding check_pidfd(const machine& m);
finding check_open_files(const machine& m);

// device_checks.cpp
finding check_rdma(const machine& m);
finding check_kernel_tls(const machine& m);
finding check_gpus(const machine& m);
finding check_persistent_memory(const machine& m);

// disk_checks.cpp
finding check_direct_io(const machine& m);
finding check_free_space(const machine& m);
finding check_io_limits(const machine& m);

} // namespace millrace::tools::doctor
