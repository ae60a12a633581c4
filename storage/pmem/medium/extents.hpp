// The extents of a slot: runs of the pool's file that hold whole windows of a stream. Reserved by
// registration, storing and repack.
#pragma once

#include <millrace/storage/io/packing.hpp>
#include <millrace/storage/pmem/medium/heap.hpp>

#include <cstdint>
#include <vector>

namespace millrace::storage::pmem {

inline constexpr std::size_t extents_max = 4096;

struct reserved_extents {
  std::vector<data_extent> extents;
  std::uint64_t taken_bytes = 0; // the bytes taken from the heap
};

/// Reserves space for a packed stream in `into`: one run if the pool has one, else the largest
/// runs.
/// Errors: `no_space`, with nothing of it left in `into`. No other thread may reserve at the same
///         time.
result<reserved_extents> reserve_extents(change& into, const io::packing& packed);

/// A run of the file that holds a part of a run of a stream.
struct located_run {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t from = 0; // offset in the run of the stream
};

/// Returns the places of bytes [at, at + length) of a stream. No run is longer than
/// `run_max_bytes`.
std::vector<located_run> locate(
  const std::vector<data_extent>& extents, std::uint64_t at, std::uint64_t length,
  std::uint64_t run_max_bytes = ~0ull);

} // namespace millrace::storage::pmem
