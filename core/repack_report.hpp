// The report of a repack. Checkpoint stores make it; providers send it to the client that asked.
#pragma once

#include <millrace/core/inspect.hpp>

#include <cstdint>

namespace millrace {

/// What a repack has done to the pool of one provider.
struct repack_report {
  std::uint64_t freed_bytes = 0;    // of slots that were given back
  std::uint64_t moved_bytes = 0;    // of versions that were copied so that free ranges join
  std::uint64_t versions_freed = 0; // second versions of finished jobs
  std::uint64_t remains_freed = 0;  // active slots of dead jobs
  /// Slots in use, and versions that are still needed because the version that would stay is
  /// damaged.
  std::uint64_t skipped = 0;
  std::uint64_t largest_free_bytes_before = 0; // the largest free range
  std::uint64_t largest_free_bytes_after = 0;
  /// There is more to do: the progress callback or a closing store stopped the repack.
  bool stopped_early = false;

  friend bool operator==(const repack_report&, const repack_report&) = default;
};
MILLRACE_INSPECT(
  repack_report, x.freed_bytes, x.moved_bytes, x.versions_freed, x.remains_freed, x.skipped,
  x.largest_free_bytes_before, x.largest_free_bytes_after, x.stopped_early)

} // namespace millrace
