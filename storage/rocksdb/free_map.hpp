// Which parts of the segment files are free. Kept by `segment_store`; rebuilt whenever it opens.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace millrace::storage::rocksdb {

/// A run of bytes of one segment file.
struct extent {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  friend bool operator==(const extent&, const extent&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, extent& x) {
  return f(x.file, x.offset, x.length);
}

/// Space is handed out in multiples of this, so that fragments stay large enough to write fast.
inline constexpr std::uint64_t extent_unit_bytes = 64 * 1024;

/// Not thread-safe: the owner's lock guards it.
class free_map {
public:
  std::uint64_t free_bytes() const noexcept { return free_bytes_; }

  /// Takes exactly `size_bytes`, a multiple of the unit: the smallest run that holds it all, or
  /// where none does the largest runs there are. Null when too little is free.
  std::optional<std::vector<extent>> allocate(std::uint64_t size_bytes);

  /// Takes one run that must be free; false, and nothing taken, when some of it is not.
  bool carve(const extent& taken);

  /// Returns a run; it merges with its free neighbours.
  void release(const extent& returned);

  /// True when all of [0, size_bytes) of a file is free.
  bool is_free(std::uint32_t file, std::uint64_t size_bytes) const;

private:
  using place = std::pair<std::uint32_t, std::uint64_t>;
  using runs = std::map<place, std::uint64_t>;

  void add(place at, std::uint64_t length);
  void remove(runs::iterator run);
  extent take_front(runs::iterator run, std::uint64_t length);

  runs runs_;
  std::set<std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>> by_length_;
  std::uint64_t free_bytes_ = 0;
};

} // namespace millrace::storage::rocksdb
