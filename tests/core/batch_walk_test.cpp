// Tests the batches of a rank, epoch after epoch, and the text of a state.
#include <millrace/core/batch_walk.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <numeric>

using namespace millrace;

namespace {

constexpr sample_order::key key{3, 7, 0};

std::vector<std::uint64_t> order_of(std::uint64_t samples, std::uint64_t epoch) {
  sample_order order{samples, {key.set, key.seed, epoch}};
  std::vector<std::uint64_t> out(samples);
  for (std::uint64_t i = 0; i < samples; ++i)
    out[i] = order.at(i);
  return out;
}

// What all ranks get of an epoch, from a position on; one number is the batches of each.
std::vector<std::uint64_t> rest_of_epoch(
  const batch_plan& plan, std::uint64_t epoch, std::uint64_t position, std::uint64_t& batches) {
  std::vector<batch_walk> ranks;
  for (std::uint64_t rank = 0; rank < plan.world_size; ++rank) {
    ranks.emplace_back(plan, rank, key, shuffle_kind{});
    ranks.back().go_to(epoch, position);
  }
  std::vector<std::uint64_t> out;
  for (batches = 0;; ++batches) {
    std::size_t ended = 0;
    for (auto& rank : ranks) {
      auto step = rank.next();
      ended += step.ends_epoch;
      out.insert(out.end(), step.samples.begin(), step.samples.end());
    }
    if (ended > 0) {
      BOOST_TEST_REQUIRE(ended == ranks.size());
      BOOST_TEST(ranks.front().epoch() == epoch + 1);
      BOOST_TEST(ranks.front().position() == 0u);
      return out;
    }
  }
}

} // namespace

BOOST_AUTO_TEST_SUITE(batch_walks)

BOOST_AUTO_TEST_CASE(the_ranks_have_the_order_of_every_epoch) {
  for (std::uint64_t world = 1; world <= 7; ++world)
    for (std::uint64_t epoch : {0, 1, 5}) {
      std::uint64_t batches = 0;
      BOOST_TEST(rest_of_epoch({101, 4, world}, epoch, 0, batches) == order_of(101, epoch));
      BOOST_TEST(batches == (101 + 4 * world - 1) / (4 * world));
    }
}

BOOST_AUTO_TEST_CASE(a_walk_goes_on_with_another_number_of_ranks) {
  auto whole = order_of(101, 2);
  std::uint64_t batches = 0;
  batch_plan before{101, 4, 3};
  auto position = before.after(before.after(0));
  for (std::uint64_t world = 1; world <= 7; ++world) {
    auto rest = rest_of_epoch({101, 4, world}, 2, position, batches);
    std::vector<std::uint64_t> wanted(whole.begin() + 24, whole.end());
    BOOST_TEST(rest == wanted);
  }
}

BOOST_AUTO_TEST_CASE(padding_is_no_sample) {
  batch_walk last{{10, 4, 2, remainder_kind::pad}, 1, key, {}};
  BOOST_TEST(last.next().samples.size() == 4u);
  auto step = last.next();
  BOOST_TEST(step.position == 8u);
  BOOST_TEST(step.samples.empty());
  BOOST_TEST(step.padding == 4u);
  BOOST_TEST(step.rows() == 4u);
  BOOST_TEST(last.next().ends_epoch);
}

BOOST_AUTO_TEST_CASE(an_epoch_without_samples_ends_at_once) {
  batch_walk none{{0, 4, 2}, 1, key, {}};
  for (std::uint64_t epoch : {0, 1, 2}) {
    auto step = none.next();
    BOOST_TEST(step.ends_epoch);
    BOOST_TEST(step.epoch == epoch);
  }
}

BOOST_AUTO_TEST_SUITE_END()
