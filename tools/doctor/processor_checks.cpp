// Checks the kernel, the cores, and the NUMA nodes of cores and memory.
#include <millrace/tools/doctor/checks.hpp>

#include <fmt/format.h>

#include <sstream>
#include <utility>

namespace millrace::tools::doctor {

finding check_kernel(const machine& m) {
  auto release = m.read("/proc/sys/kernel/osrelease");
  if (!release)
    return note("unknown", "mount /proc");
  auto major = leading_number(*release);
  auto dot = release->find('.');
  auto minor = dot == release->npos ? std::nullopt : leading_number(release->substr(dot + 1));
  if (!major || !minor)
    return note(*release, "no version that Millrace knows how to read");
  if (std::pair{*major, *minor} < std::pair<std::uint64_t, std::uint64_t>{5, 14})
    return note(
      *release + ", without MADV_POPULATE_WRITE: services start more slowly",
      "run Linux 5.14 or later");
  return ok(*release);
}

finding check_cores(const machine& m) {
  auto online = count_of_list(m.read("/sys/devices/system/cpu/online").value_or(""));
  auto allowed = count_of_list(m.field("/proc/self/status", "Cpus_allowed_list").value_or(""));
  if (allowed == 0)
    allowed = online;
  if (allowed == 0)
    return note("unknown", "mount /proc and /sys");
  auto value = online > allowed ? fmt::format("{} of {} (affinity)", allowed, online)
                                : fmt::format("{}", allowed);
  std::istringstream quota{m.control_group("cpu.max").value_or("max 100000")};
  std::uint64_t used_us = 0;
  std::uint64_t period_us = 0;
  if (quota >> used_us >> period_us && period_us > 0 && used_us < allowed * period_us)
    return note(
      fmt::format("{}, of which the control group grants {} %", value, used_us * 100 / period_us),
      "raise cpu.max of the control group (systemd: CPUQuota=)");
  if (allowed < 2)
    return note(value + ": copying and training share it", "give the process two cores or more");
  return ok(value);
}

finding check_numa(const machine& m) {
  auto nodes = count_of_list(m.read("/sys/devices/system/node/online").value_or(""));
  if (nodes == 0)
    return ok("1 (the kernel reports none)");
  if (nodes == 1)
    return ok("1");
  return note(
    fmt::format("{}: copies between them are slower", nodes),
    "run one service per node: numactl --cpunodebind=N --membind=N millrace serve");
}

} // namespace millrace::tools::doctor
