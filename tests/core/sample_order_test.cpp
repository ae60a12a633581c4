// Tests the order of an epoch and how ranks share it: every sample once, whatever the number of
// ranks is and however often it changes.
#include <millrace/core/batch_plan.hpp>
#include <millrace/core/sample_order.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

using namespace millrace;

namespace {

std::vector<std::uint64_t> samples_of(const sample_order& order) {
  std::vector<std::uint64_t> out(order.size());
  for (std::uint64_t i = 0; i < out.size(); ++i)
    out[i] = order.at(i);
  return out;
}

bool has_each_once(std::vector<std::uint64_t> samples, std::uint64_t count) {
  std::ranges::sort(samples);
  std::vector<std::uint64_t> all(count);
  std::iota(all.begin(), all.end(), 0);
  return samples == all;
}

// The positions of all ranks of a batch, one rank after the other.
void append(std::vector<std::uint64_t>& out, const batch_plan& plan, std::uint64_t position) {
  for (std::uint64_t rank = 0; rank < plan.world_size; ++rank) {
    auto part = plan.slice(position, rank);
    for (std::uint64_t i = 0; i < part.count; ++i)
      out.push_back(part.first + i);
  }
}

} // namespace

BOOST_AUTO_TEST_SUITE(sample_orders)

BOOST_AUTO_TEST_CASE(an_order_has_every_sample_once) {
  for (auto shuffle :
       {shuffle_kind::full(), shuffle_kind::none(), shuffle_kind{2}, shuffle_kind{7},
        shuffle_kind{64}, shuffle_kind{1000}})
    for (std::uint64_t size :
         {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, 999, 4097})
      for (std::uint64_t seed : {0, 1, 77}) {
        sample_order order{size, {5, seed, 3}, shuffle};
        BOOST_TEST_REQUIRE(
          has_each_once(samples_of(order), size), shuffle.to_string() << ' ' << size);
        for (std::uint64_t i = 0; i < size; ++i)
          BOOST_TEST_REQUIRE(order.position_of(order.at(i)) == i);
      }
}

// Trainings that another version has begun go on in this one.
BOOST_AUTO_TEST_CASE(an_order_is_the_same_in_every_version) {
  sample_order order{1000, {11, 22, 33}};
  std::vector<std::uint64_t> first(8);
  for (std::uint64_t i = 0; i < first.size(); ++i)
    first[i] = order.at(i);
  const std::vector<std::uint64_t> known{28, 1, 48, 352, 546, 600, 472, 105};
  BOOST_TEST(first == known, boost::test_tools::per_element());
  BOOST_TEST(order.digest() == 10758613403020484358u);
  BOOST_TEST((sample_order{1000, {11, 22, 33}, {64}}.digest() == 4395849340283447186u));
  BOOST_TEST((sample_order{std::uint64_t{1} << 40, {1, 2, 3}}.at(12345678901) == 84814280329u));
}

BOOST_AUTO_TEST_CASE(sets_seeds_and_epochs_have_orders_of_their_own) {
  std::set<std::uint64_t> digests;
  for (std::uint64_t set : {1, 2})
    for (std::uint64_t seed : {1, 2})
      for (std::uint64_t epoch : {1, 2})
        digests.insert(sample_order{100, {set, seed, epoch}}.digest());
  BOOST_TEST(digests.size() == 8u);
  BOOST_TEST((sample_order{100, {1, 2, 3}}.digest() == sample_order{100, {1, 2, 3}}.digest()));
}

// Every sample comes as often at every position: chi squared stays below what one in a million
// orders that are drawn evenly exceeds.
BOOST_AUTO_TEST_CASE(samples_are_mixed_evenly) {
  constexpr std::uint64_t size = 12, orders = 12'000;
  constexpr double chi_squared_max = 205; // 121 degrees of freedom
  std::array<std::array<double, size>, size> seen{}, after{};
  for (std::uint64_t seed = 0; seed < orders; ++seed) {
    sample_order order{size, {9, seed, 0}};
    for (std::uint64_t i = 0; i < size; ++i) {
      seen[i][order.at(i)] += 1;
      after[order.at(i)][order.at((i + 1) % size)] += 1;
    }
  }
  auto chi_squared = [](auto& counts, bool with_diagonal) {
    double out = 0;
    auto expected = static_cast<double>(orders) * size / (size * (size - (with_diagonal ? 0 : 1)));
    for (std::uint64_t i = 0; i < size; ++i)
      for (std::uint64_t k = 0; k < size; ++k)
        if (with_diagonal || i != k)
          out += (counts[i][k] - expected) * (counts[i][k] - expected) / expected;
    return out;
  };
  BOOST_TEST(chi_squared(seen, true) < chi_squared_max);
  BOOST_TEST(chi_squared(after, false) < chi_squared_max);
}

BOOST_AUTO_TEST_CASE(blocks_stay_together) {
  sample_order order{1003, {4, 5, 6}, {10}};
  auto samples = samples_of(order);
  std::vector<std::uint64_t> blocks;
  for (auto sample : samples)
    if (blocks.empty() || blocks.back() != sample / 10)
      blocks.push_back(sample / 10);
  BOOST_TEST(has_each_once(blocks, 101)); // each block in one piece
  BOOST_TEST(!std::ranges::is_sorted(blocks));
  BOOST_TEST(!std::ranges::is_sorted(samples.begin(), samples.begin() + 10));
}

BOOST_AUTO_TEST_CASE(shuffles_are_read_and_written) {
  for (auto* text : {"full", "none", "block:2", "block:4096"})
    BOOST_TEST(shuffle_kind::parse(text).value().to_string() == text);
  for (auto* text : {"", "Full", "block", "block:", "block:1", "block:-3", "block:2x", "block: 2"})
    BOOST_TEST((shuffle_kind::parse(text).error().code() == errc::invalid_argument), text);
  for (auto* text : {"short", "pad", "drop"})
    BOOST_TEST(to_string(parse_remainder(text).value()) == text);
  BOOST_TEST((parse_remainder("shorter").error().code() == errc::invalid_argument));
}

// With one to seven ranks, a number that changes between batches, and beginning again at any of
// them.
BOOST_AUTO_TEST_CASE(ranks_share_an_epoch_whatever_their_number_is) {
  std::mt19937_64 random{3};
  for (int round = 0; round < 300; ++round) {
    batch_plan plan;
    plan.samples = random() % 200;
    plan.remainder = random() % 2 ? remainder_kind::pad : remainder_kind::shorter;
    std::vector<std::uint64_t> seen;
    std::uint64_t position = 0;
    plan.world_size = 1 + random() % 7;
    plan.batch_size = 1 + random() % 9;
    while (plan.batches_from(position) > 0) {
      append(seen, plan, position);
      position = plan.after(position);
      if (random() % 3 == 0)
        plan.world_size = 1 + random() % 7;
    }
    std::vector<std::uint64_t> all(plan.samples);
    std::iota(all.begin(), all.end(), 0);
    BOOST_TEST_REQUIRE(seen == all);
  }
}

BOOST_AUTO_TEST_CASE(every_rank_has_as_many_batches) {
  for (std::uint64_t samples = 0; samples < 60; ++samples)
    for (std::uint64_t world = 1; world <= 7; ++world)
      for (auto kind : {remainder_kind::shorter, remainder_kind::pad, remainder_kind::drop}) {
        batch_plan plan{samples, 4, world, kind};
        auto batches = plan.batches_from();
        std::uint64_t position = 0, done = 0, given = 0;
        while (plan.batches_from(position) > 0) {
          for (std::uint64_t rank = 0; rank < world; ++rank) {
            auto part = plan.slice(position, rank);
            given += part.count;
            BOOST_TEST_REQUIRE(part.first + part.count <= samples);
            BOOST_TEST_REQUIRE(part.count + part.padding <= 4u);
            BOOST_TEST_REQUIRE((kind == remainder_kind::shorter || part.count + part.padding == 4));
            BOOST_TEST_REQUIRE((kind == remainder_kind::pad || part.padding == 0));
          }
          position = plan.after(position);
          ++done;
        }
        BOOST_TEST_REQUIRE(done == batches);
        auto whole = samples / plan.whole() * plan.whole();
        BOOST_TEST_REQUIRE(given == (kind == remainder_kind::drop ? whole : samples));
      }
  // Numbers that no machine has.
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  batch_plan large{10, most / 2, 5, remainder_kind::pad};
  BOOST_TEST((large.slice(0, 0) == batch_slice{0, 10, most / 2 - 10}));
  BOOST_TEST((large.slice(0, 4) == batch_slice{10, 0, most / 2}));
  BOOST_TEST(large.after(0) == 10u);
  // The difference between two ranks is one sample at most.
  batch_plan plan{10, 4, 4};
  BOOST_TEST((plan.slice(0, 0) == batch_slice{0, 3, 0}));
  BOOST_TEST((plan.slice(0, 3) == batch_slice{8, 2, 0}));
  plan.remainder = remainder_kind::pad;
  BOOST_TEST((plan.slice(0, 2) == batch_slice{8, 2, 2}));
  BOOST_TEST((plan.slice(0, 3) == batch_slice{10, 0, 4}));
}

BOOST_AUTO_TEST_SUITE_END()
