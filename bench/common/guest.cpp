// Starts a child that boots a guest. The rows come back in a file.
#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/guest.hpp>
#include <millrace/bench/common/peers.hpp>

#include <cstdio>
#include <filesystem>

namespace millrace::bench {

namespace {

constexpr int guest_timeout_s = 1800;

std::vector<std::string> command_of(const guest_run& how, const std::string& directory) {
  auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> out{how.program, "--or-skip", "--devs", "2", "--share", directory};
  out.insert(out.end(), {"--timeout", std::to_string(guest_timeout_s)});
  out.insert(out.end(), how.options.begin(), how.options.end());
  out.insert(out.end(), {"--", self, "--json", directory + "/rows"});
  out.insert(out.end(), how.arguments.begin(), how.arguments.end());
  return out;
}

} // namespace

void run_in_guest(report& out, const std::string& what, const guest_run& how) {
  scratch_directory shared{"/tmp"};
  std::printf("%s: in a guest with emulated devices\n", what.c_str());
  std::fflush(stdout);
  auto guest = need(child::start(command_of(how, shared.path())), how.program);
  std::string last;
  while (auto line = guest.read_line(1000 * guest_timeout_s)) {
    last = *line;
    if (last.starts_with("skipped: "))
      std::printf("%s\n", last.c_str());
  }
  auto where = out.add_from(shared.file("rows"));
  if (where)
    std::printf("%s was measured on: %s\n", what.c_str(), where->c_str());
  else if (!last.starts_with("skipped: "))
    skip_aloud(what, where.error().detail() + "; the guest says: " + last);
  std::fflush(stdout);
}

} // namespace millrace::bench
