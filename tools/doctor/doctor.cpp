// The table of checks.
#include <millrace/tools/doctor/checks.hpp>

#include <array>

namespace millrace::tools::doctor {

namespace {

struct named_check {
  std::string_view name;
  finding (*run)(const machine&);
};

constexpr auto all_checks = std::to_array<named_check>({
  {"kernel", check_kernel},
  {"cores", check_cores},
  {"numa nodes", check_numa},
  {"memory", check_memory},
  {"huge pages, private", check_transparent_huge_pages},
  {"huge pages, shared", check_shared_huge_pages},
  {"huge page pool", check_huge_page_pool},
  {"locked memory", check_locked_memory},
  {"shared memory", check_shared_memory},
  {"ptrace scope", check_ptrace},
  {"pidfd", check_pidfd},
  {"open files", check_open_files},
  {"rdma devices", check_rdma},
  {"kernel tls", check_kernel_tls},
  {"gpus", check_gpus},
  {"persistent memory", check_persistent_memory},
  {"direct i/o", check_direct_io},
  {"free space", check_free_space},
  {"i/o limits", check_io_limits},
});

} // namespace

std::string_view to_string(check_state state) noexcept {
  switch (state) {
  case check_state::ok:
    return "ok";
  case check_state::note:
    return "note";
  case check_state::missing:
    return "missing";
  }
  return "missing";
}

std::vector<finding> examine(const machine& m) {
  std::vector<finding> all;
  for (auto& check : all_checks) {
    all.push_back(check.run(m));
    all.back().check = check.name;
  }
  return all;
}

} // namespace millrace::tools::doctor
