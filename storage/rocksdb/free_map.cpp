// Best-fit allocation of extents. Called by `segment_store`.
#include <millrace/core/assert.hpp>
#include <millrace/storage/rocksdb/free_map.hpp>

#include <algorithm>

namespace millrace::storage::rocksdb {

namespace {

// A place is a file and the number of a unit in it. Runs of two files never touch: no file has so
// many units.
constexpr std::uint64_t units_max = 1ull << 32;

std::uint64_t place_of(std::uint32_t file, std::uint64_t offset) {
  return file * units_max + offset / extent_unit_bytes;
}

bool is_possible(const extent& e) {
  return e.offset % extent_unit_bytes == 0 && e.length % extent_unit_bytes == 0 &&
    e.length / extent_unit_bytes < units_max &&
    e.offset / extent_unit_bytes < units_max - e.length / extent_unit_bytes;
}

} // namespace

std::optional<std::vector<extent>> free_map::allocate(std::uint64_t size_bytes) {
  MILLRACE_ASSERT(size_bytes % extent_unit_bytes == 0);
  if (size_bytes > free_bytes())
    return std::nullopt;
  std::vector<extent> taken;
  for (auto left = size_bytes / extent_unit_bytes; left > 0;) {
    auto units = std::min(left, runs_.largest().first);
    auto at = *runs_.take(units);
    taken.push_back(
      {static_cast<std::uint32_t>(at / units_max), at % units_max * extent_unit_bytes,
       units * extent_unit_bytes});
    left -= units;
  }
  return taken;
}

bool free_map::carve(const extent& taken) {
  return is_possible(taken) &&
    runs_.carve(place_of(taken.file, taken.offset), taken.length / extent_unit_bytes);
}

void free_map::release(const extent& returned) {
  MILLRACE_ASSERT(is_possible(returned));
  runs_.give(place_of(returned.file, returned.offset), returned.length / extent_unit_bytes);
}

bool free_map::is_free(std::uint32_t file, std::uint64_t size_bytes) const {
  return runs_.length_at(place_of(file, 0)) * extent_unit_bytes == size_bytes;
}

} // namespace millrace::storage::rocksdb
