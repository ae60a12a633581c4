// Starts a child that boots a guest. The rows come back in a file.
#include <millrace/bench/transfer/guest.hpp>

#include <unistd.h>

#include <cstdio>
#include <filesystem>

namespace millrace::bench {

namespace {

constexpr int guest_timeout_s = 1800;

// Returns the command for the same program with the same options.
std::vector<std::string> command_of(
  const guest_run& how, const extent& extent, const driver_kind& kind,
  const std::string& directory) {
  auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> out{how.program, "--or-skip", "--devs", "2", "--share", directory};
  out.insert(out.end(), {"--timeout", std::to_string(guest_timeout_s), "--", self, "--emulated"});
  out.insert(out.end(), {"--driver", kind.column, "--json", directory + "/rows"});
  if (how.rounds > 0)
    out.insert(out.end(), {"--rounds", std::to_string(how.rounds)});
  if (how.no_peers)
    out.emplace_back("--no-peers");
  if (extent.quick)
    out.emplace_back("--quick");
  if (!how.only.empty())
    out.insert(out.end(), {"--only", how.only});
  for (auto size : extent.only_sizes)
    out.insert(out.end(), {"--size", std::to_string(size)});
  return out;
}

void measure(stage& s, const guest_run& how, const driver_kind& kind) {
  scratch_directory shared{"/tmp"};
  std::printf("%s: in a guest with emulated devices\n", kind.column.c_str());
  std::fflush(stdout);
  auto guest = need(child::start(command_of(how, s.how, kind, shared.path())), how.program);
  std::string last;
  while (auto line = guest.read_line(1000 * guest_timeout_s)) {
    last = *line;
    if (last.starts_with("skipped: "))
      std::printf("%s\n", last.c_str());
  }
  auto where = s.out.add_from(shared.file("rows"));
  if (where)
    std::printf("%s was measured on: %s\n", kind.column.c_str(), where->c_str());
  else if (!last.starts_with("skipped: "))
    skip_aloud(kind.column, where.error().detail() + "; the guest says: " + last);
  std::fflush(stdout);
}

} // namespace

void measure_in_guest(stage& s, const guest_run& how) {
  if (rdma_ports())
    return;
  auto there = s.drivers;
  std::erase_if(there, [](auto* kind) { return !kind->rdma; });
  std::erase_if(s.drivers, [](auto* kind) { return kind->rdma; });
  for (auto* kind : there)
    measure(s, how, *kind);
}

} // namespace millrace::bench
