// The map of free runs: allocation takes the run that fits best.
#include <millrace/core/assert.hpp>
#include <millrace/core/free_runs.hpp>

#include <iterator>

namespace millrace {

std::pair<std::uint64_t, std::uint64_t> free_runs::largest() const noexcept {
  return sizes_.empty() ? std::pair<std::uint64_t, std::uint64_t>{} : *sizes_.rbegin();
}

std::uint64_t free_runs::length_at(std::uint64_t begin) const noexcept {
  auto run = runs_.find(begin);
  return run == runs_.end() ? 0 : run->second;
}

std::optional<std::uint64_t> free_runs::take(std::uint64_t length, std::uint64_t alignment) {
  for (auto i = sizes_.lower_bound({length, 0}); i != sizes_.end(); ++i) {
    auto [run_length, first] = *i;
    auto begin = (first + alignment - 1) / alignment * alignment;
    if (begin - first <= run_length && length <= run_length - (begin - first)) {
      carve(begin, length);
      return begin;
    }
  }
  return std::nullopt;
}

bool free_runs::carve(std::uint64_t begin, std::uint64_t length) {
  auto run = runs_.upper_bound(begin);
  if (run == runs_.begin() || length == 0)
    return false;
  --run;
  auto [first, run_length] = *run;
  auto skipped = begin - first;
  if (skipped > run_length || length > run_length - skipped)
    return false;
  remove(run);
  add(first, skipped);
  add(begin + length, run_length - skipped - length);
  return true;
}

void free_runs::give(std::uint64_t begin, std::uint64_t length) {
  auto next = runs_.lower_bound(begin);
  if (next != runs_.begin()) {
    auto before = std::prev(next);
    MILLRACE_ASSERT(before->first + before->second <= begin);
    if (before->first + before->second == begin) {
      begin = before->first;
      length += before->second;
      remove(before);
    }
  }
  if (next != runs_.end() && next->first == begin + length) {
    length += next->second;
    remove(next);
  }
  add(begin, length);
}

void free_runs::add(std::uint64_t begin, std::uint64_t length) {
  if (length == 0)
    return;
  runs_.emplace(begin, length);
  sizes_.emplace(length, begin);
  size_ += length;
}

void free_runs::remove(runs::iterator run) {
  sizes_.erase({run->second, run->first});
  size_ -= run->second;
  runs_.erase(run);
}

} // namespace millrace
