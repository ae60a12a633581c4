// Checks what processes may do with each other, and how many files one may open.
#include <millrace/tools/doctor/checks.hpp>

#include <fmt/format.h>

#include <cstring>

namespace millrace::tools::doctor {

namespace {

// Enough for connections_max of a default configuration, with several descriptors each, and for
// RocksDB's files.
constexpr std::uint64_t comfortable_files = 4096;

} // namespace

finding check_ptrace(const machine& m) {
  auto scope = m.read("/proc/sys/kernel/yama/ptrace_scope");
  if (!scope)
    return ok("not restricted (no Yama)");
  if (*scope == "0")
    return ok("0, not restricted");
  if (m.capable(cap_sys_ptrace) && *scope != "3")
    return ok(*scope + ", and this process has CAP_SYS_PTRACE");
  return note(
    *scope + ": no process may reach into another; clients copy their tensors themselves",
    "nothing to do for Millrace; sysctl kernel.yama.ptrace_scope=0 lifts it for debuggers");
}

finding check_pidfd(const machine& m) {
  int why = m.calls.pidfd();
  if (why == 0)
    return ok("available");
  return note(
    std::string{"pidfd_open: "} + std::strerror(why),
    "run Linux 5.3 or later, or allow pidfd_open in the sandbox of the process");
}

finding check_open_files(const machine& m) {
  auto limit = m.limit("Max open files");
  if (!limit)
    return note("unknown", "mount /proc");
  auto text = [](std::uint64_t n) {
    return n == machine::unlimited ? std::string{"unlimited"} : std::to_string(n);
  };
  auto value = fmt::format("{}, services raise it to {}", text(limit->soft), text(limit->hard));
  if (limit->hard < comfortable_files)
    return missing(value, "ulimit -Hn 65536, or LimitNOFILE=65536 in the systemd unit");
  return ok(value);
}

} // namespace millrace::tools::doctor
