// How a model's tensors become one stream of windows on disk, and which parts of it a read needs.
#pragma once

#include <millrace/storage/bucket.hpp>

#include <cstdint>
#include <vector>

namespace millrace::storage::io {

/// The smallest window: one digest block at any alignment fits, and is read whole.
inline constexpr std::uint64_t window_bytes_min = 512 * 1024;

/// A part of a tensor and where it lies: in the stream (when packed) or in a window's memory (when
/// read).
struct placed_piece {
  std::uint32_t tensor = 0;
  std::uint64_t tensor_offset = 0;
  std::uint64_t length = 0;
  std::uint64_t at = 0;
};

/// Pieces [first, first + count) of the packing, and their run of the stream.
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

/// Packs tensors in order, each on a 64-byte border; one is cut only on its digest-block borders,
/// and windows are full except where the next block does not fit. Part of the stored format: readers
/// compute it again from the layout and the window size.
packing pack(const std::vector<std::uint64_t>& tensor_bytes, std::uint64_t window_bytes);

/// The same, but a tensor of more than one digest block starts on a border of direct I/O, so that its pieces follow
/// each other without a gap: it lies in one run wherever the windows do. Part of the stored format, too.
packing pack_contiguous(const std::vector<std::uint64_t>& tensor_bytes, std::uint64_t window_bytes);

/// Window number `index` in memory that was acquired for it.
window lend(const packing& packed, std::uint32_t index, const memory_block& memory);

/// Clears what lies between a window's pieces: what was in its memory before is nobody's business on disk.
void clear_gaps(const packing& packed, std::uint32_t index, std::byte* data);

/// Where the last piece of the stream ends; what an inlined model takes.
std::uint64_t stream_end(const packing& packed) noexcept;

/// The parts of a range that lie in one packed piece each; `at` is in the stream.
std::vector<placed_piece> parts_of(const packing& packed, const wanted& range);

/// A run of the stream and where its bytes go in the window's memory.
struct read_run {
  std::uint64_t at = 0;
  std::uint64_t length = 0;
  std::uint64_t memory = 0;
};

struct read_plan {
  std::vector<read_run> runs;
  std::vector<placed_piece> pieces; // `at`: in the window's memory
  std::uint64_t memory_bytes = 0;
};

/// Cuts ranges into lists of which each needs at most `window_bytes` of memory.
std::vector<std::vector<wanted>> cut_ranges(
  const packing& packed, const std::vector<wanted>& ranges, std::uint64_t window_bytes);

/// What to read for one such list, in whole units of direct I/O; near neighbours are read in one
/// run.
read_plan plan_read(const packing& packed, const std::vector<wanted>& ranges);

} // namespace millrace::storage::io
