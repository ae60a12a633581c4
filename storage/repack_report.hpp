// What a repack of a pool did. Told by checkpoint stores, and by providers to those that asked for one.
#pragma once

#include <millrace/core/inspect.hpp>

#include <cstdint>

namespace millrace::storage {

/// What a repack did.
struct repack_report {
  std::uint64_t freed_bytes = 0;
  std::uint64_t moved_bytes = 0;
  std::uint64_t versions_freed = 0; // second versions of finished jobs
  std::uint64_t remains_freed = 0;  // active slots of dead jobs
  /// Slots in use, and versions that are needed because the one that would stay is damaged.
  std::uint64_t skipped = 0;
  std::uint64_t largest_free_bytes_before = 0;
  std::uint64_t largest_free_bytes_after = 0;
  bool stopped_early =
    false; // there is more to do: its progress callback or a closing store stopped it

  friend bool operator==(const repack_report&, const repack_report&) = default;
};
MILLRACE_INSPECT(
  repack_report, x.freed_bytes, x.moved_bytes, x.versions_freed, x.remains_freed, x.skipped,
  x.largest_free_bytes_before, x.largest_free_bytes_after, x.stopped_early)

} // namespace millrace::storage
