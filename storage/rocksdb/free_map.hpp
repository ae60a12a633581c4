// The free runs of the segment files. Kept by `segment_store`, rebuilt whenever it opens.
#pragma once

#include <millrace/core/free_runs.hpp>
#include <millrace/core/inspect.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace millrace::storage::rocksdb {

/// A run of bytes of one segment file.
struct extent {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  friend bool operator==(const extent&, const extent&) = default;
};

/// Returns what a list of extents takes in memory.
inline std::uint64_t listed_bytes(const std::vector<extent>& extents) noexcept {
  return extents.size() * sizeof(extent);
}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, extent& x) {
  return f(x.file, x.offset, x.length);
}

/// Space is allocated in multiples of this, so that fragments stay large enough for fast writes.
inline constexpr std::uint64_t extent_unit_bytes = 64 * 1024;

/// The free runs of all segment files. Not thread-safe: the owner's lock guards it.
class free_map {
public:
  std::uint64_t free_bytes() const noexcept { return runs_.size() * extent_unit_bytes; }

  /// Takes exactly `size_bytes`, a multiple of the unit, from the smallest run that is large
  /// enough, or else from the largest runs. Null when too little is free.
  std::optional<std::vector<extent>> allocate(std::uint64_t size_bytes);

  /// Takes one given run. Returns false, and takes nothing, unless all of it is free.
  bool carve(const extent& taken);

  /// Makes a run free and merges it with its free neighbours.
  void release(const extent& returned);

  /// Returns true when all of [0, size_bytes) of a file is free.
  bool is_free(std::uint32_t file, std::uint64_t size_bytes) const;

private:
  free_runs runs_; // in units, of all files
};

} // namespace millrace::storage::rocksdb
