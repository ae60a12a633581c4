// Cuts a transfer into pieces that pass through one chunk of staging memory each.
// Used by `asking_side`.
#pragma once

#include <millrace/core/bulk_handle.hpp>
#include <millrace/transport/driver.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::transport::staged {

/// The content of one chunk: ranges of the region, packed one after the other, and their local
/// side.
struct piece {
  std::vector<segment> ranges;
  std::vector<copy_op> ops; // `remote_offset` is into the chunk
  std::uint64_t bytes = 0;
};

/// Returns the pieces in the order of the ops. Every digest block belongs to one piece, so the
/// digests of all pieces, in order, are those of the transfer. A transfer without bytes has one
/// empty piece, so that its handle is checked, too.
class cutter {
public:
  /// `what` must outlive the cutter. `chunk_bytes` is at least one digest block.
  cutter(const transfer& what, std::uint64_t chunk_bytes);

  bool at_end() const noexcept { return op_ == what_->ops.size() && given_ > 0; }
  /// Returns the next piece. Only before the end.
  piece next();
  /// Returns where the last op ends in the region; the largest number if an op's end overflows.
  std::uint64_t extent() const noexcept { return extent_; }

private:
  void skip_finished_ops();
  std::uint64_t next_length(const copy_op& op, std::uint64_t room) const;

  const transfer* what_;
  const std::uint64_t chunk_bytes_;
  std::uint64_t extent_ = 0;
  std::size_t op_ = 0;
  std::uint64_t at_ = 0; // in that op
  std::size_t given_ = 0;
};

} // namespace millrace::transport::staged
