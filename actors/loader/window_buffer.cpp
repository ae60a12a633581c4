// Every value is in the map; `idle_` has those that can make room.
#include <millrace/actors/loader/window_buffer.hpp>
#include <millrace/core/assert.hpp>
#include <millrace/core/rounding.hpp>

#include <algorithm>
#include <limits>

namespace millrace::actors {

namespace {

constexpr std::uint64_t small_window_bytes = 64u << 20; // for windows of small values

// An empty value has a place, too.
std::uint64_t space_of(std::uint64_t bytes) {
  return round_up(std::max<std::uint64_t>(bytes, 1), window_buffer::alignment);
}

// The sum, or the largest number.
std::uint64_t bounded_sum(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::uint64_t>::max() : sum;
}

} // namespace

window_buffer::window_buffer(std::uint64_t size_bytes, std::uint64_t samples)
  : size_bytes_(size_bytes), samples_(samples),
    values_max_(std::max(size_bytes, small_window_bytes) / bytes_of_value_min) {
  free_.give(0, size_bytes);
  counts_.size_bytes = size_bytes;
}

void window_buffer::pass(std::uint64_t samples) noexcept {
  now_ = bounded_sum(now_, std::min(samples, samples_));
}

std::uint64_t window_buffer::time_of(std::uint64_t needed_in) const noexcept {
  return bounded_sum(now_, std::min(needed_in, bounded_sum(samples_, samples_)));
}

std::optional<value_place> window_buffer::take(
  const value_key& key, std::uint64_t bytes, std::uint64_t needed_in) {
  auto found = values_.find(key);
  if (found == values_.end() || !found->second.kept || found->second.bytes != bytes) {
    ++counts_.missing;
    return std::nullopt;
  }
  auto& one = found->second;
  if (one.readers++ == 0)
    idle_.erase({one.needed_at, key});
  one.needed_at = time_of(needed_in);
  ++counts_.given;
  return one.place;
}

void window_buffer::let_go(const value_key& key) {
  auto found = values_.find(key);
  MILLRACE_ASSERT(found != values_.end() && found->second.readers > 0);
  auto& one = found->second;
  if (--one.readers > 0)
    return;
  if (one.kept)
    idle_.emplace(one.needed_at, key);
  else
    remove(found);
}

void window_buffer::drop(const value_key& key) {
  auto& one = values_.at(key);
  if (std::exchange(one.kept, false)) {
    ++counts_.damaged;
    --counts_.kept;
    counts_.kept_bytes -= one.bytes;
  }
  let_go(key);
}

std::optional<std::uint64_t> window_buffer::begin_write(
  const value_key& key, std::uint64_t bytes, std::uint64_t needed_in) {
  if (values_.contains(key) || bytes > size_bytes_)
    return std::nullopt;
  auto needed_at = time_of(needed_in);
  auto address = place_for(space_of(bytes), needed_at);
  if (!address) {
    ++counts_.refused;
    return std::nullopt;
  }
  values_.emplace(key, value{.place = {*address, 0}, .bytes = bytes, .needed_at = needed_at});
  return address;
}

// Finds a place with more and more of the values gone that are needed last. Those whose places are
// not needed then, or all of them without a place, come back.
std::optional<std::uint64_t> window_buffer::place_for(
  std::uint64_t space, std::uint64_t needed_at) {
  std::vector<values::iterator> gone;
  auto too_many = values_.size() >= values_max_;
  std::optional<std::uint64_t> address;
  while ((too_many && gone.empty()) || !(address = free_.take(space, alignment))) {
    auto which = last_needed(needed_at);
    if (!which || gone.size() == makes_room_max)
      break;
    gone.push_back(values_.find(*which));
    auto& one = gone.back()->second;
    idle_.erase({one.needed_at, *which});
    free_.give(one.place.address, space_of(one.bytes));
  }
  for (auto& one : gone) {
    auto& value = one->second;
    auto for_count = address && too_many && one == gone.front();
    if (!for_count && free_.carve(value.place.address, space_of(value.bytes)))
      idle_.emplace(value.needed_at, one->first);
    else
      evict(one);
  }
  return address;
}

// What has made room: its place is free, or part of another value's.
void window_buffer::evict(values::iterator which) {
  --counts_.kept;
  counts_.kept_bytes -= which->second.bytes;
  ++counts_.evicted;
  values_.erase(which);
}

std::optional<value_key> window_buffer::last_needed(std::uint64_t needed_at) const {
  if (idle_.empty())
    return std::nullopt;
  if (auto& [first, key] = *idle_.begin(); first < now_ && now_ - first > samples_)
    return key;
  auto& [last, key] = *idle_.rbegin();
  return last > needed_at ? std::optional{key} : std::nullopt;
}

void window_buffer::commit(const value_key& key, std::uint64_t digest) {
  auto& one = values_.at(key);
  one.place.digest = digest;
  one.kept = true;
  idle_.emplace(one.needed_at, key);
  ++counts_.written;
  ++counts_.kept;
  counts_.kept_bytes += one.bytes;
}

void window_buffer::abandon(const value_key& key) { remove(values_.find(key)); }

void window_buffer::remove(values::iterator which) {
  free_.give(which->second.place.address, space_of(which->second.bytes));
  values_.erase(which);
}

} // namespace millrace::actors
