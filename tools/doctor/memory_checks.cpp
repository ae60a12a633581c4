// Checks how much memory there is, and whether the system grants it in huge pages, pinned, and
// shared.
#include <millrace/config/settings.hpp>
#include <millrace/core/control_group.hpp>
#include <millrace/tools/doctor/checks.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace millrace::tools::doctor {

namespace {

constexpr auto thp = "/sys/kernel/mm/transparent_hugepage/";

// The memory of a small configuration: one memory provider, and the staging memory of another
// provider.
constexpr std::uint64_t comfortable_memory_bytes = 2 * config::gib;

} // namespace

finding check_memory(const machine& m) {
  auto total = m.field_bytes("/proc/meminfo", "MemTotal");
  auto available = m.field_bytes("/proc/meminfo", "MemAvailable");
  if (!total || !available)
    return note("unknown", "mount /proc");
  auto free_bytes = *available;
  auto value = fmt::format("{} available of {}", human_size(*available), human_size(*total));
  if (auto group = tightest_group_memory(m.root); group && group->limit_bytes < *total) {
    free_bytes = std::min(free_bytes, group->free_bytes());
    value += fmt::format(
      ", control group {} has {} of {}", group->group, human_size(group->used_bytes),
      human_size(group->limit_bytes));
  }
  if (free_bytes < comfortable_memory_bytes)
    return note(value, "lower `capacity` of memory providers and `staging.size`, or free memory");
  return ok(value);
}

finding check_transparent_huge_pages(const machine& m) {
  auto chosen = chosen_word(m.read(std::string{thp} + "enabled").value_or(""));
  if (chosen == "always" || chosen == "madvise")
    return ok(chosen);
  return missing(
    chosen.empty() ? "not in this kernel" : chosen,
    chosen.empty() ? "a kernel with CONFIG_TRANSPARENT_HUGEPAGE"
                   : "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
}

// Arenas are memfds, so this setting decides for them.
finding check_shared_huge_pages(const machine& m) {
  auto chosen = chosen_word(m.read(std::string{thp} + "shmem_enabled").value_or(""));
  if (chosen.empty())
    return missing("not in this kernel", "a kernel with CONFIG_TRANSPARENT_HUGEPAGE");
  if (chosen == "never" || chosen == "deny")
    return missing(
      chosen + ": arenas get small pages unless the pool has huge ones",
      "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
  return ok(chosen);
}

finding check_huge_page_pool(const machine& m) {
  auto total = leading_number(m.field("/proc/meminfo", "HugePages_Total").value_or(""));
  auto free_pages = leading_number(m.field("/proc/meminfo", "HugePages_Free").value_or(""));
  auto size = m.field_bytes("/proc/meminfo", "Hugepagesize");
  if (!total || !free_pages || !size)
    return missing("not in this kernel", "a kernel with CONFIG_HUGETLBFS");
  if (*total == 0)
    return missing(
      "empty",
      fmt::format(
        "sysctl vm.nr_hugepages=N, N pages of {} for all arenas together; optional where shared "
        "huge pages are ok",
        human_size(*size)));
  return ok(fmt::format("{} of {} pages of {} free", *free_pages, *total, human_size(*size)));
}

finding check_locked_memory(const machine& m) {
  if (m.capable(cap_ipc_lock))
    return ok("unlimited (CAP_IPC_LOCK)");
  auto limit = m.limit("Max locked memory");
  if (!limit)
    return note("unknown", "mount /proc");
  if (limit->soft == machine::unlimited)
    return ok("unlimited");
  return missing(
    human_size(limit->soft) + ": arenas above it may be swapped out",
    "ulimit -l unlimited, LimitMEMLOCK=infinity in the systemd unit, or memlock in "
    "/etc/security/limits.conf");
}

// A memfd is bounded neither by kernel.shmmax nor by the size of /dev/shm.
finding check_shared_memory(const machine& m) {
  int why = m.calls.sealed_memfd();
  if (why == 0)
    return ok("memfd with seals (no limit of its own)");
  return missing(
    std::string{"memfd_create: "} + std::strerror(why),
    m.read("/proc/sys/vm/memfd_noexec").value_or("0") == "2"
      ? "sysctl vm.memfd_noexec=1"
      : "allow memfd_create and fcntl(F_ADD_SEALS) in the sandbox of the process");
}

} // namespace millrace::tools::doctor
