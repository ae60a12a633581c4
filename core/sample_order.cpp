// A Feistel network over the smallest power of two that holds all numbers. What falls outside is
// put through it again, which must end inside, since the network is a permutation.
#include <millrace/core/assert.hpp>
#include <millrace/core/sample_order.hpp>

#include <algorithm>
#include <bit>
#include <charconv>

namespace millrace {

namespace {

// Fewer bits would leave a half without any.
constexpr unsigned bits_min = 4;

// The last step of SplitMix64: every bit of the result depends on all bits of the argument.
constexpr std::uint64_t mixed(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr std::uint64_t low(std::uint64_t x, unsigned bits) noexcept {
  return x & ((std::uint64_t{1} << bits) - 1);
}

} // namespace

keyed_permutation::keyed_permutation(std::uint64_t size, std::uint64_t key) noexcept : size_(size) {
  MILLRACE_ASSERT(size <= std::uint64_t{1} << 62);
  auto bits = std::max(bits_min, static_cast<unsigned>(std::bit_width(size > 0 ? size - 1 : 0)));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  for (auto& round : keys_)
    round = mixed(key += 0x9e3779b97f4a7c15);
}

std::uint64_t keyed_permutation::at(std::uint64_t place) const noexcept {
  auto x = place;
  do {
    auto left = x >> low_bits_, right = low(x, low_bits_);
    for (std::size_t i = 0; i < rounds; i += 2) {
      left ^= low(mixed(right ^ keys_[i]), high_bits_);
      right ^= low(mixed(left ^ keys_[i + 1]), low_bits_);
    }
    x = left << low_bits_ | right;
  } while (x >= size_);
  return x;
}

std::uint64_t keyed_permutation::place_of(std::uint64_t number) const noexcept {
  auto x = number;
  do {
    auto left = x >> low_bits_, right = low(x, low_bits_);
    for (std::size_t i = rounds; i > 0; i -= 2) {
      right ^= low(mixed(left ^ keys_[i - 1]), low_bits_);
      left ^= low(mixed(right ^ keys_[i - 2]), high_bits_);
    }
    x = left << low_bits_ | right;
  } while (x >= size_);
  return x;
}

result<shuffle_kind> shuffle_kind::parse(std::string_view text) {
  if (text == "full")
    return full();
  if (text == "none")
    return none();
  shuffle_kind out;
  constexpr std::string_view by_block = "block:";
  auto number = text.starts_with(by_block) ? text.substr(by_block.size()) : std::string_view{};
  auto [end, bad] = std::from_chars(number.data(), number.data() + number.size(), out.block);
  if (bad != std::errc{} || end != number.data() + number.size() || out.block < 2)
    return fail(
      errc::invalid_argument,
      "shuffle: '{}' is none of full, none and block:N, with at least 2 samples in a block", text);
  return out;
}

std::string shuffle_kind::to_string() const {
  return block == 0 ? "full" : block == 1 ? "none" : "block:" + std::to_string(block);
}

sample_order::sample_order(std::uint64_t samples, const key& of, shuffle_kind shuffle) noexcept
  : samples_(samples), block_(std::min(shuffle.block, std::max<std::uint64_t>(samples, 2))),
    key_(mixed(of.set ^ mixed(of.seed ^ mixed(of.epoch + 0x9e3779b97f4a7c15)))) {
  if (block_ == 0)
    all_ = {samples, key_};
  if (block_ < 2 || samples == 0)
    return;
  auto blocks = (samples + block_ - 1) / block_;
  all_ = {blocks, key_};
  missing_ = blocks * block_ - samples;
  short_place_ = all_.place_of(blocks - 1);
}

keyed_permutation sample_order::within(std::uint64_t block) const noexcept {
  auto is_short = block + 1 == all_.size();
  return {block_ - (is_short ? missing_ : 0), mixed(key_ ^ mixed(block + 1))};
}

std::uint64_t sample_order::at(std::uint64_t position) const noexcept {
  MILLRACE_ASSERT(position < samples_);
  if (block_ == 0)
    return all_.at(position);
  if (block_ == 1)
    return position;
  auto after_short = position >= (short_place_ + 1) * block_ - missing_;
  auto full = position + (after_short ? missing_ : 0);
  auto block = all_.at(full / block_);
  return block * block_ + within(block).at(full % block_);
}

std::uint64_t sample_order::position_of(std::uint64_t sample) const noexcept {
  MILLRACE_ASSERT(sample < samples_);
  if (block_ == 0)
    return all_.place_of(sample);
  if (block_ == 1)
    return sample;
  auto block = sample / block_, place = all_.place_of(block);
  return place * block_ + within(block).place_of(sample % block_) -
    (place > short_place_ ? missing_ : 0);
}

std::uint64_t sample_order::digest(std::uint64_t count) const noexcept {
  samples_digest all;
  for (std::uint64_t i = 0; i < std::min(samples_, count); ++i)
    all.add(at(i));
  return all.value();
}

void samples_digest::add(std::uint64_t sample) noexcept {
  some_[count_++] = sample;
  if (count_ == some_.size())
    flush();
}

std::uint64_t samples_digest::value() noexcept {
  flush();
  return all_.value();
}

void samples_digest::flush() noexcept {
  all_.add(some_.data(), count_ * sizeof(some_[0]));
  count_ = 0;
}

} // namespace millrace
