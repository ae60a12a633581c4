// Tests windows and reads as numbers: borders, bounds, completeness.
#include <millrace/core/digest.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/io/packing.hpp>

#include <boost/test/unit_test.hpp>

#include <random>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::storage::io;

namespace {

std::vector<std::uint64_t> random_sizes(std::mt19937_64& random) {
  static constexpr std::uint64_t bounds[] = {2, 5'000, 600'000, 5'000'000};
  std::vector<std::uint64_t> sizes(1 + random() % 40);
  for (auto& size : sizes)
    size = random() % bounds[random() % 4];
  return sizes;
}

// Some blocks of some tensors, in order.
std::vector<wanted> random_ranges(
  const std::vector<std::uint64_t>& sizes, std::mt19937_64& random) {
  std::vector<wanted> ranges;
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0 || random() % 3 == 0)
      continue;
    auto blocks = digest_count(sizes[i]);
    auto first = random() % blocks;
    auto last = first + 1 + random() % (blocks - first);
    auto end = std::min(last * digest_block_bytes, sizes[i]);
    ranges.push_back({i, first * digest_block_bytes, end - first * digest_block_bytes});
  }
  return ranges;
}

} // namespace

BOOST_AUTO_TEST_SUITE(packings)

BOOST_AUTO_TEST_CASE(every_byte_has_one_place_within_the_window) {
  std::mt19937_64 random{1};
  for (auto round = 0; round < 200; ++round) {
    auto sizes = random_sizes(random);
    auto packed = pack(sizes, window_bytes_min * (1 + random() % 4));
    std::vector<std::uint64_t> seen(sizes.size());
    std::uint64_t end = 0;
    for (auto& p : packed.pieces) {
      BOOST_REQUIRE(p.tensor_offset == seen[p.tensor]);
      BOOST_REQUIRE(p.tensor_offset % digest_block_bytes == 0);
      BOOST_REQUIRE(p.at % 64 == 0);
      BOOST_REQUIRE(p.at >= end);
      seen[p.tensor] += p.length;
      end = p.at + p.length;
    }
    BOOST_REQUIRE((seen == sizes));
    for (auto& w : packed.windows) {
      BOOST_REQUIRE(w.at % direct_io_bytes == 0);
      BOOST_REQUIRE(packed.pieces[w.first].at == w.at);
      auto& last = packed.pieces[w.first + w.count - 1];
      BOOST_REQUIRE(last.at + last.length <= w.at + w.size_bytes);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_tensor_of_a_contiguous_packing_lies_in_one_run) {
  std::mt19937_64 random{3};
  for (auto round = 0; round < 200; ++round) {
    auto sizes = random_sizes(random);
    auto window_bytes = window_bytes_min * (1 + random() % 4);
    auto packed = pack_contiguous(sizes, window_bytes);
    std::vector<std::uint64_t> seen(sizes.size()), starts(sizes.size());
    std::uint64_t end = 0;
    for (auto& p : packed.pieces) {
      if (p.tensor_offset == 0)
        starts[p.tensor] = p.at;
      BOOST_REQUIRE(p.at == starts[p.tensor] + p.tensor_offset);
      BOOST_REQUIRE((p.tensor_offset == seen[p.tensor] && p.at >= end && p.at % 64 == 0));
      seen[p.tensor] += p.length;
      end = p.at + p.length;
    }
    BOOST_REQUIRE((seen == sizes));
    for (auto& w : packed.windows)
      BOOST_REQUIRE((w.at % direct_io_bytes == 0 && w.size_bytes <= window_bytes));
  }
}

BOOST_AUTO_TEST_CASE(what_is_cut_fits_and_covers_the_ranges) {
  std::mt19937_64 random{2};
  for (auto round = 0; round < 200; ++round) {
    auto sizes = random_sizes(random);
    auto window_bytes = window_bytes_min * (1 + random() % 4);
    auto packed = pack(sizes, window_bytes);
    auto ranges = random_ranges(sizes, random);
    std::uint64_t asked = 0, got = 0;
    for (auto& range : ranges)
      asked += range.length;
    for (auto& part : cut_ranges(packed, ranges, window_bytes)) {
      auto plan = plan_read(packed, part);
      BOOST_REQUIRE(plan.memory_bytes <= window_bytes);
      BOOST_REQUIRE(!part.empty());
      for (auto& run : plan.runs) {
        BOOST_REQUIRE((run.at % direct_io_bytes == 0 && run.length % direct_io_bytes == 0));
        BOOST_REQUIRE(run.at + run.length <= packed.stream_bytes);
        BOOST_REQUIRE(run.memory + run.length <= plan.memory_bytes);
      }
      for (auto& p : plan.pieces) {
        BOOST_REQUIRE(p.at + p.length <= plan.memory_bytes);
        BOOST_REQUIRE(p.tensor_offset % digest_block_bytes == 0);
        got += p.length;
      }
    }
    BOOST_REQUIRE(got == asked);
  }
}

BOOST_AUTO_TEST_CASE(a_whole_model_is_read_in_few_windows) {
  auto packed = pack({30u << 20}, 1u << 20);
  auto parts = cut_ranges(packed, {{0, 0, 30u << 20}}, 1u << 20);
  BOOST_TEST(parts.size() == 30u);
  BOOST_TEST(plan_read(packed, parts[0]).runs.size() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
