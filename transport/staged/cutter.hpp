// Divides a transfer among chunks of staging memory.
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
struct chunk_content {
  std::vector<segment> ranges;
  std::vector<copy_op> ops; // `remote_offset` is into the chunk
  std::uint64_t bytes = 0;
};

/// Returns the contents of the chunks in the order of the ops. Every digest block passes through
/// one chunk, so the digests of all contents, in order, are those of the transfer. A transfer
/// without bytes has one empty content, so that its handle is checked, too.
class cutter {
public:
  /// `what` must outlive the cutter. `chunk_bytes` is at least one digest block.
  cutter(const transfer& what, std::uint64_t chunk_bytes);

  bool at_end() const noexcept { return op_ == what_->ops.size() && given_ > 0; }
  /// Returns the content of the next chunk. Only before the end.
  chunk_content next();
  /// Returns where the last op ends in the region; the largest number if an op's end overflows.
  std::uint64_t region_end() const noexcept { return region_end_; }

private:
  void skip_finished_ops();
  std::uint64_t next_length(const copy_op& op, std::uint64_t room) const;

  const transfer* what_;
  const std::uint64_t chunk_bytes_;
  std::uint64_t region_end_ = 0;
  std::size_t op_ = 0;
  std::uint64_t at_ = 0; // in that op
  std::size_t given_ = 0;
};

} // namespace millrace::transport::staged
