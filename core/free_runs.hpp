// The free runs of a space, by place and by length. Used by the staging pool and by the segment
// files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace millrace {

/// Which bytes, or units of bytes, of a space are free. Neighbouring runs are merged. Not
/// thread-safe: the lock of the owner guards it.
class free_runs {
public:
  /// How much is free.
  std::uint64_t size() const noexcept { return size_; }

  /// The length and the begin of the largest run; two zeros if nothing is free.
  std::pair<std::uint64_t, std::uint64_t> largest() const noexcept;

  /// Returns the length of the run that begins exactly here; 0 if none does.
  std::uint64_t length_at(std::uint64_t begin) const noexcept;

  /// Takes `length` from the smallest run that has it at a multiple of `alignment`, as near to its
  /// begin as possible, and returns where it begins.
  std::optional<std::uint64_t> take(std::uint64_t length, std::uint64_t alignment = 1);

  /// Takes one given range. Returns false, and takes nothing, unless all of it is free.
  bool carve(std::uint64_t begin, std::uint64_t length);

  /// Makes a range free, of which nothing is free yet.
  void give(std::uint64_t begin, std::uint64_t length);

private:
  using runs = std::map<std::uint64_t, std::uint64_t>;

  void add(std::uint64_t begin, std::uint64_t length);
  void remove(runs::iterator run);

  runs runs_;                                               // begin → length
  std::set<std::pair<std::uint64_t, std::uint64_t>> sizes_; // the same runs: length, begin
  std::uint64_t size_ = 0;
};

} // namespace millrace
