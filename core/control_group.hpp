// The memory that the control groups of this process allow. Used when a node starts and by
// `millrace doctor`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace millrace {

/// A bound on the memory of a group of processes. The kernel kills a process of the group when
/// they use more.
struct group_memory {
  std::string group; // "/system.slice/job"
  std::uint64_t limit_bytes = 0;
  std::uint64_t used_bytes = 0; // includes cached files

  std::uint64_t free_bytes() const noexcept {
    return limit_bytes > used_bytes ? limit_bytes - used_bytes : 0;
  }
};

/// Returns the bound that leaves least, of the groups of this process and all groups around them,
/// in the hierarchies of version 2 and version 1. Nothing if none has a bound. `root`: put before
/// every path that is read; tests use it.
std::optional<group_memory> tightest_group_memory(const std::string& root = {});

/// Returns the lowest of these bounds, whatever is in use. Cached files give way, so this is what
/// lasting memory has to fit in.
std::optional<group_memory> lowest_group_memory(const std::string& root = {});

} // namespace millrace
