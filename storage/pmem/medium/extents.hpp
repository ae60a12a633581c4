// Space for data in a pool: runs of its file that hold whole windows of a stream. Reserved at registration and by
// repack; read and written through `locate`.
#pragma once

#include <millrace/storage/io/packing.hpp>
#include <millrace/storage/pmem/medium/heap.hpp>

#include <cstdint>
#include <vector>

namespace millrace::storage::pmem {

inline constexpr std::size_t extents_max = 4096;

struct reserved_extents {
  std::vector<data_extent> extents;
  std::uint64_t taken_bytes = 0; // of the heap
};

/// Reserves room for a packed stream in `into`: one run if the pool has one, else the largest there are.
/// Errors: `no_space`, with nothing left in `into` of it. Nobody else may reserve meanwhile.
result<reserved_extents> reserve_extents(change& into, const io::packing& packed);

/// A run of the file that belongs to a run of a stream.
struct located_run {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t from = 0; // bytes after the beginning of the run asked for
};

/// Where bytes [at, at + length) of a stream lie; no run longer than `run_max_bytes`.
std::vector<located_run> locate(
  const std::vector<data_extent>& extents, std::uint64_t at, std::uint64_t length,
  std::uint64_t run_max_bytes = ~0ull);

} // namespace millrace::storage::pmem
