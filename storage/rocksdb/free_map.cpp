// Best-fit allocation of extents. Called by `segment_store`.
#include <millrace/core/assert.hpp>
#include <millrace/storage/rocksdb/free_map.hpp>

#include <algorithm>

namespace millrace::storage::rocksdb {

std::optional<std::vector<extent>> free_map::allocate(std::uint64_t size_bytes) {
  MILLRACE_ASSERT(size_bytes % extent_unit_bytes == 0);
  if (size_bytes > free_bytes_)
    return std::nullopt;
  std::vector<extent> taken;
  while (size_bytes > 0) {
    auto fit = by_length_.lower_bound({size_bytes, 0, 0});
    if (fit == by_length_.end())
      --fit;
    auto [length, file, offset] = *fit;
    taken.push_back(take_front(runs_.find({file, offset}), std::min(length, size_bytes)));
    size_bytes -= taken.back().length;
  }
  return taken;
}

bool free_map::carve(const extent& taken) {
  auto run = runs_.upper_bound({taken.file, taken.offset});
  if (run == runs_.begin())
    return false;
  --run;
  auto [file, offset] = run->first;
  auto end = offset + run->second;
  if (
    file != taken.file || taken.length == 0 || taken.length > end - offset ||
    taken.offset > end - taken.length)
    return false;
  remove(run);
  add({file, offset}, taken.offset - offset);
  add({file, taken.offset + taken.length}, end - taken.offset - taken.length);
  return true;
}

void free_map::release(const extent& returned) {
  auto at = place{returned.file, returned.offset};
  auto length = returned.length;
  auto next = runs_.lower_bound(at);
  if (next != runs_.begin()) {
    auto before = std::prev(next);
    if (before->first.first == at.first && before->first.second + before->second == at.second) {
      at = before->first;
      length += before->second;
      remove(before);
    }
  }
  if (
    next != runs_.end() && next->first == place{returned.file, returned.offset + returned.length}) {
    length += next->second;
    remove(next);
  }
  add(at, length);
}

bool free_map::is_free(std::uint32_t file, std::uint64_t size_bytes) const {
  auto run = runs_.find({file, 0});
  return run != runs_.end() && run->second == size_bytes;
}

void free_map::add(place at, std::uint64_t length) {
  if (length == 0)
    return;
  runs_.emplace(at, length);
  by_length_.emplace(length, at.first, at.second);
  free_bytes_ += length;
}

void free_map::remove(runs::iterator run) {
  by_length_.erase({run->second, run->first.first, run->first.second});
  free_bytes_ -= run->second;
  runs_.erase(run);
}

extent free_map::take_front(runs::iterator run, std::uint64_t length) {
  auto [file, offset] = run->first;
  auto whole = run->second;
  remove(run);
  add({file, offset + length}, whole - length);
  return {file, offset, length};
}

} // namespace millrace::storage::rocksdb
