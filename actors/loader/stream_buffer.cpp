// Every place is in one state, which the bags and the map follow.
#include <millrace/actors/loader/stream_buffer.hpp>
#include <millrace/core/assert.hpp>

#include <algorithm>

namespace millrace::actors {

void place_bag::insert(std::uint32_t item) {
  where_[item] = static_cast<std::uint32_t>(items_.size());
  items_.push_back(item);
}

void place_bag::erase(std::uint32_t item) {
  swap(where_[item], items_.size() - 1);
  items_.pop_back();
  where_[item] = absent;
}

void place_bag::swap(std::size_t a, std::size_t b) {
  std::swap(items_[a], items_[b]);
  where_[items_[a]] = static_cast<std::uint32_t>(a);
  where_[items_[b]] = static_cast<std::uint32_t>(b);
}

stream_buffer::stream_buffer(const stream_options& options)
  : options_(options), random_(options.seed), samples_(options.capacity),
    present_(static_cast<std::uint32_t>(options.capacity)),
    replaceable_(static_cast<std::uint32_t>(options.capacity)) {
  free_.reserve(options.capacity);
  for (auto i = samples_.size(); i-- > 0;)
    free_.push_back(static_cast<std::uint32_t>(i));
}

std::optional<std::uint32_t> stream_buffer::begin_write() {
  auto place = make_room();
  if (place)
    ++counts_.writing;
  return place;
}

std::optional<std::uint32_t> stream_buffer::make_room() {
  if (!free_.empty()) {
    auto place = free_.back();
    free_.pop_back();
    return place;
  }
  std::optional<std::uint32_t> place;
  if (replaceable_.size() > 0)
    place = replaceable_.at(random_below(replaceable_.size()));
  else if (options_.when_full == full_policy::drop_oldest)
    place = oldest_idle();
  if (place) {
    ++(samples_[*place].times_given > 0 ? counts_.replaced : counts_.dropped);
    vanish(*place);
  }
  return place;
}

std::optional<std::uint32_t> stream_buffer::oldest_idle() const {
  auto idle = [&](auto& one) { return samples_[one.second].readers == 0; };
  auto found = std::ranges::find_if(by_age_, idle);
  return found == by_age_.end() ? std::nullopt : std::optional{found->second};
}

std::uint64_t stream_buffer::commit(std::uint32_t place, std::uint64_t digest) {
  samples_[place] = {.number = next_number_++, .digest = digest};
  appear(place);
  --counts_.writing;
  ++counts_.appended;
  return samples_[place].number;
}

void stream_buffer::abandon(std::uint32_t place) {
  --counts_.writing;
  free_.push_back(place);
}

void stream_buffer::appear(std::uint32_t place) {
  samples_[place].present = true;
  by_age_.emplace(samples_[place].number, place);
  present_.insert(place);
}

void stream_buffer::vanish(std::uint32_t place) {
  samples_[place].present = false;
  by_age_.erase(samples_[place].number);
  present_.erase(place);
  if (replaceable_.contains(place))
    replaceable_.erase(place);
}

std::vector<std::uint32_t> stream_buffer::choose(std::uint64_t count) {
  std::vector<std::uint32_t> out;
  out.reserve(count);
  if (options_.policy == stream_policy::fifo) {
    for (auto one = by_age_.begin(); out.size() < count; ++one)
      out.push_back(one->second);
    return out;
  }
  for (std::size_t i = 0; i < count; ++i) {
    present_.swap(i, i + random_below(present_.size() - i));
    out.push_back(present_.at(i));
  }
  return out;
}

std::vector<given_sample> stream_buffer::take(std::uint64_t count) {
  auto there = present_.size();
  if (ended_)
    count = std::min<std::uint64_t>(count, there);
  else if (there < std::max(count, options_.threshold))
    return {};
  std::vector<given_sample> out;
  out.reserve(count);
  for (auto place : choose(count)) {
    auto& one = samples_[place];
    out.push_back({place, one.number, one.digest});
    counts_.reading += one.readers++ == 0;
    counts_.repeated += one.times_given++ > 0;
    ++counts_.given;
    if (replaceable_.contains(place))
      replaceable_.erase(place);
    if (!stays())
      vanish(place);
  }
  return out;
}

void stream_buffer::let_go(std::uint32_t place) {
  auto& one = samples_[place];
  MILLRACE_ASSERT(one.readers > 0);
  if (--one.readers > 0)
    return;
  --counts_.reading;
  if (!one.present)
    free_.push_back(place);
  else if (options_.policy == stream_policy::reservoir && one.times_given > 0)
    replaceable_.insert(place);
}

void stream_buffer::release(std::uint32_t place) { let_go(place); }

// A sample that others were given meanwhile need not come back.
void stream_buffer::put_back(std::uint32_t place) {
  auto& one = samples_[place];
  --counts_.given;
  if (--one.times_given > 0)
    --counts_.repeated;
  else if (!one.present)
    appear(place);
  let_go(place);
}

stream_counts stream_buffer::counts() const {
  auto out = counts_;
  out.present = present_.size();
  return out;
}

} // namespace millrace::actors
