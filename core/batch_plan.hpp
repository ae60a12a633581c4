// How the ranks of a job share the samples of an epoch, batch by batch.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <string_view>

namespace millrace {

/// What becomes of the last samples of an epoch, where they are too few for a batch of every rank.
enum class remainder_kind : std::uint8_t {
  shorter, // the ranks share them evenly; a rank's batch may be empty
  pad,     // every rank has a full batch; what is no sample is marked
  drop,    // they are left out of this epoch
};

/// Reads "short", "pad" or "drop". Errors: `invalid_argument` naming the text.
result<remainder_kind> parse_remainder(std::string_view text);
std::string_view to_string(remainder_kind kind) noexcept;

/// One rank's part of a batch: positions in the order of the epoch.
struct batch_slice {
  std::uint64_t first = 0;
  std::uint64_t count = 0;   // samples
  std::uint64_t padding = 0; // places of the batch after them that have none

  friend bool operator==(const batch_slice&, const batch_slice&) = default;
};

/// Cuts an epoch into batches. A batch of all ranks is the next `batch_size` × `world_size`
/// positions, and rank r has the r-th part of them. So the ranks' samples, one rank after the other
/// and batch after batch, are the order of the epoch, whatever their number is; and where a
/// training stands is one number, the position of the next batch.
///
/// All ranks have the same number of batches, always.
/// Threads: pure; any.
struct batch_plan {
  std::uint64_t samples = 0;
  std::uint64_t batch_size = 1; // of a rank
  std::uint64_t world_size = 1;
  remainder_kind remainder = remainder_kind::shorter;

  /// Returns the samples of a full batch of all ranks.
  std::uint64_t whole() const noexcept;
  /// Returns the batches that are left from a position on.
  std::uint64_t batches_from(std::uint64_t position = 0) const noexcept;
  /// Returns the position of the batch after the one at `position`.
  std::uint64_t after(std::uint64_t position) const noexcept;
  /// Returns a rank's part of the batch at `position`. There must be one.
  batch_slice slice(std::uint64_t position, std::uint64_t rank) const noexcept;
};

} // namespace millrace
