// Tests the copy of lists of parts, as the samples of batches are: any lengths, places and modes.
#include <millrace/tests/support/pattern.hpp>
#include <millrace/transport/copy/copy.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <random>
#include <vector>

using namespace millrace::transport;
using namespace millrace::testing;

namespace {

constexpr auto untouched = std::byte{0xee};

// Parts of one source, in any order, each to a place of its own with a byte between them.
struct list_of_parts {
  explicit list_of_parts(const std::vector<std::size_t>& lengths, std::uint64_t seed)
    : lengths_(lengths) {
    std::mt19937_64 random{seed};
    std::size_t all = 0;
    for (auto length : lengths)
      all += length + 1;
    source_ = pattern(all + 64, seed);
    target_.assign(all, untouched);
    std::size_t at = 0;
    for (auto length : lengths) {
      parts.push_back(
        {target_.data() + at, source_.data() + random() % (all - length + 1), length});
      at += length + 1;
    }
  }

  void check() const {
    std::size_t wrong = 0;
    for (auto& part : parts)
      wrong += !std::equal(part.source, part.source + part.length, part.target) ||
        part.target[part.length] != untouched;
    BOOST_TEST(wrong == 0u);
  }

  std::vector<local_copy> parts;

private:
  std::vector<std::size_t> lengths_;
  std::vector<std::byte> source_, target_;
};

const auto modes = {store_mode::cached, store_mode::streaming, store_mode::written_back};

} // namespace

BOOST_AUTO_TEST_SUITE(copy_parts_suite)

BOOST_AUTO_TEST_CASE(no_part_and_one_part) {
  for (auto mode : modes) {
    copy_parts({}, mode);
    for (std::size_t length : {0u, 1u, 127u, 128u, 129u, 4096u, 200'000u}) {
      list_of_parts one{{length}, length};
      copy_parts(one.parts, mode);
      streaming_fence();
      one.check();
    }
  }
}

BOOST_AUTO_TEST_CASE(parts_of_one_length_are_exact) {
  for (auto mode : modes)
    for (std::size_t length : {1u, 64u, 128u, 300u, 4096u, 5000u, 50'000u, 131'072u, 140'000u})
      for (std::size_t count : {2u, 3u, 9u}) {
        list_of_parts all{std::vector<std::size_t>(count, length), length};
        copy_parts(all.parts, mode);
        streaming_fence();
        all.check();
      }
}

BOOST_AUTO_TEST_CASE(parts_of_any_lengths_are_exact) {
  std::mt19937_64 random{3};
  for (auto mode : modes)
    for (std::uint64_t round = 0; round < 60; ++round) {
      std::vector<std::size_t> lengths;
      for (auto count = random() % 40; count > 0; --count)
        lengths.push_back(random() % (std::size_t{1} << random() % 19));
      list_of_parts all{lengths, round + 1};
      copy_parts(all.parts, mode);
      streaming_fence();
      all.check();
    }
}

BOOST_AUTO_TEST_SUITE_END()
