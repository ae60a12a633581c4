// Random choices that a seed repeats.
// Used by tests that run the product with many seeds.
#pragma once

#include <cstdint>

namespace millrace::testing {

/// SplitMix64: the same numbers on every machine, and no relation between any two seeds.
class dice {
public:
  explicit dice(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    auto z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
  }

  /// Returns a number from 0 to `bound` - 1.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  std::uint64_t between(std::uint64_t first, std::uint64_t last) {
    return first + below(last - first + 1);
  }
  bool percent(std::uint64_t chance) { return below(100) < chance; }

  template <class Container>
  auto& one_of(Container& c) {
    return c[below(c.size())];
  }

private:
  std::uint64_t state_;
};

} // namespace millrace::testing
