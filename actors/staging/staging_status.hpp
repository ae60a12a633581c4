// What the status of a node says about its staging memory.
#pragma once

#include <millrace/core/inspect.hpp>

#include <cstdint>
#include <string>

namespace millrace::actors {

/// The staging memory of one provider, in blocks that the staging manager grants.
struct staging_status {
  std::string name; // the provider, or "PROVIDER snapshots"
  std::uint64_t quota_bytes = 0;
  std::uint64_t budget_bytes = 0; // granted
  std::uint64_t used_bytes = 0;   // the part of the budget that is lent
  std::uint64_t waiting = 0;      // requests
  std::uint64_t waits = 0;        // requests that had to wait, since the start
  std::uint64_t waited_us = 0;    // all of them together
  std::uint64_t lent_bytes = 0;   // since the start
  std::uint64_t lent_count = 0;
  std::uint64_t calls = 0; // the calls of the manager since the start

  friend bool operator==(const staging_status&, const staging_status&) = default;
};
MILLRACE_INSPECT(
  staging_status, x.name, x.quota_bytes, x.budget_bytes, x.used_bytes, x.waiting, x.waits,
  x.waited_us, x.lent_bytes, x.lent_count, x.calls)

} // namespace millrace::actors
