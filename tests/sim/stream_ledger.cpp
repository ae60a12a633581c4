// Compares what readers got with what producers have appended.
#include <millrace/tests/sim/stream_ledger.hpp>
#include <millrace/tests/support/seeds.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace millrace::sim {

using testing::demand;

namespace {

std::string text_of(const sample_label& sample) {
  return fmt::format("sample {} of producer {}", sample.sequence, sample.producer);
}

} // namespace

void stream_ledger::got(
  std::uint64_t reader, std::span<const std::uint64_t> numbers,
  const std::vector<sample_label>& samples, std::uint64_t wanted) {
  ++batches_;
  demand(numbers.size() == samples.size(), "a batch of a stream has a number for each sample");
  demand(!samples.empty() && samples.size() <= wanted, "a batch has as many samples as asked for");
  demand(samples.size() == wanted || ending_, "batches are whole before the stream ends");
  std::vector<std::uint64_t> sorted{numbers.begin(), numbers.end()};
  std::ranges::sort(sorted);
  demand(
    std::ranges::adjacent_find(sorted) == sorted.end(), "the samples of a batch are different");
  for (std::size_t i = 0; i < samples.size(); ++i)
    got_one(reader, numbers[i], samples[i]);
}

void stream_ledger::got_one(
  std::uint64_t reader, std::uint64_t number, const sample_label& sample) {
  demand(appends_.contains(sample), text_of(sample) + " was appended before it was given");
  auto [known, is_new] = numbers_.emplace(sample, number);
  demand(
    is_new || options_.policy == stream_policy::reservoir,
    fmt::format("{} of the stream is given once", text_of(sample)));
  demand(known->second == number, text_of(sample) + " of the stream keeps its number");
  demand(
    labels_.emplace(number, sample).first->second == sample,
    fmt::format("number {} of the stream is one sample's", number));
  check_order(sample, number);
  if (options_.policy != stream_policy::fifo)
    return;
  auto [newest, is_first] = newest_.emplace(reader, number);
  demand(
    is_first || puts_back_ || newest->second < number,
    fmt::format("a fifo gives {} in the order of the samples' ages", text_of(sample)));
  newest->second = number;
}

// The neighbours among those that were given are enough.
void stream_ledger::check_order(const sample_label& sample, std::uint64_t number) const {
  auto here = numbers_.find(sample);
  auto is_before = [](auto& a, auto& b) {
    return a.first.producer != b.first.producer || a.second < b.second;
  };
  auto next = std::next(here);
  auto in_order = (here == numbers_.begin() || is_before(*std::prev(here), *here)) &&
    (next == numbers_.end() || is_before(*here, *next));
  demand(
    in_order, fmt::format("number {} of the stream: {} is in its order", number, text_of(sample)));
}

std::uint64_t stream_ledger::samples_appended() const {
  return static_cast<std::uint64_t>(
    std::ranges::count_if(appends_, [](auto& one) { return one.second == state::appended; }));
}

std::uint64_t stream_ledger::left_out() const {
  return static_cast<std::uint64_t>(std::ranges::count_if(appends_, [&](auto& one) {
    return one.second == state::appended && !numbers_.contains(one.first);
  }));
}

void stream_ledger::check_end(const stream_counts& counts) const {
  auto known = samples_appended(), missing = left_out();
  demand(
    missing <= counts.dropped + lost_max_,
    fmt::format(
      "each sample of the stream is given: {} of {} are left out, {} were dropped, and {} may be "
      "lost with their readers",
      missing, known, counts.dropped, lost_max_));
  demand(
    counts.dropped == 0 || options_.when_full == full_policy::drop_oldest,
    "no sample of the stream is dropped where producers wait");
  demand(
    lost_max_ > 0 || known < appends_.size() || missing == counts.dropped,
    fmt::format("the stream dropped {} samples, and {} are left out", counts.dropped, missing));
  demand(
    counts.appended >= std::max<std::uint64_t>(known, labels_.size()) &&
      counts.appended <= appends_.size(),
    fmt::format("the stream counts {} appended samples, {} are known", counts.appended, known));
  demand(
    counts.present + counts.writing + counts.reading == 0,
    fmt::format(
      "a stream that is over has {} samples, {} places being written and {} being read",
      counts.present, counts.writing, counts.reading));
}

} // namespace millrace::sim
