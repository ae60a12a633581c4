// Packing: how a model's tensors form one stream of windows on disk, and which parts a read needs.
// Used by kinds that store on a disk or a device.
#pragma once

#include <millrace/core/assert.hpp>
#include <millrace/storage/bucket.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace millrace::storage::io {

/// The smallest window. One digest block fits into it at any alignment.
inline constexpr std::uint64_t window_bytes_min = 512 * 1024;

/// A part of a tensor and its place: in the stream when packed, in a window's memory when read.
struct placed_piece {
  std::uint32_t tensor = 0;
  std::uint64_t tensor_offset = 0;
  std::uint64_t length = 0;
  std::uint64_t at = 0;
};

/// One window: pieces [first, first + count) of the packing, and their run of the stream.
struct packed_window {
  std::uint64_t at = 0;
  std::uint64_t size_bytes = 0; // a multiple of the direct I/O unit
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

struct packing {
  std::vector<placed_piece> pieces; // by tensor, then offset
  std::vector<packed_window> windows;
  std::uint64_t stream_bytes = 0;
};

/// Packs tensors in order, each on a 64-byte border. A tensor is cut on its digest-block borders
/// only, so a window has a gap at its end where the next block does not fit. Part of the stored
/// format: readers compute it again from the layout and the window size.
packing pack(const std::vector<std::uint64_t>& tensor_bytes, std::uint64_t window_bytes);

/// Packs as `pack` does, but starts a tensor of more than one digest block on a border of direct
/// I/O, so that its pieces follow each other without a gap. Part of the stored format, too.
packing pack_contiguous(const std::vector<std::uint64_t>& tensor_bytes, std::uint64_t window_bytes);

/// Checks the memory that a caller lends for a window that needs `size_bytes`.
/// Errors: `invalid_argument` when it is smaller, or begins on no border of direct I/O.
[[nodiscard]] status check_staging(const memory_block& lent, std::uint64_t size_bytes);

/// Returns window number `index`, in the memory that the caller lends for it.
window lend(const packing& packed, std::uint32_t index, const memory_block& memory);

/// Clears the gaps between a window's pieces, so that earlier contents of the memory do not reach
/// the disk.
void clear_gaps(const packing& packed, std::uint32_t index, std::byte* data);

/// Returns the end of the last piece in the stream: the size of an inlined model.
std::uint64_t stream_end(const packing& packed) noexcept;

/// Returns the parts of a range, each inside one packed piece. `at` is in the stream.
std::vector<placed_piece> parts_of(const packing& packed, const wanted& range);

/// A run of the stream and the place of its bytes in the window's memory.
struct read_run {
  std::uint64_t at = 0;
  std::uint64_t length = 0;
  std::uint64_t memory = 0;
};

struct read_plan {
  std::vector<read_run> runs;
  std::vector<placed_piece> pieces; // `at` is in the window's memory
  std::uint64_t memory_bytes = 0;
};

/// Calls `f(extent, skip, part, from)` for the runs of bytes [at, at + length) of a stream that
/// lies in `extents`: `part` bytes from `skip` on in the extent, which begin at `from` in the run
/// of the stream. No run is longer than `run_max_bytes`. The extents must contain all of the bytes.
template <class Extent, class F>
void for_each_run(
  const std::vector<Extent>& extents, std::uint64_t at, std::uint64_t length,
  std::uint64_t run_max_bytes, F f) {
  std::uint64_t begin = 0, from = 0; // where the extent begins in the stream; the run in the range
  for (auto& extent : extents) {
    while (from < length && at + from < begin + extent.length) {
      auto skip = at + from - begin;
      auto part = std::min({extent.length - skip, length - from, run_max_bytes});
      f(extent, skip, part, from);
      from += part;
    }
    begin += extent.length;
  }
  MILLRACE_ASSERT(from == length);
}

/// Cuts ranges into lists, each of which needs at most `window_bytes` of memory.
std::vector<std::vector<wanted>> cut_ranges(
  const packing& packed, const std::vector<wanted>& ranges, std::uint64_t window_bytes);

/// Plans the reads for one such list, in whole units of direct I/O. Near neighbours are read in one
/// run.
read_plan plan_read(const packing& packed, const std::vector<wanted>& ranges);

} // namespace millrace::storage::io
