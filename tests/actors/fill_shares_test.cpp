// Tests who writes which blocks of a set that several clients fill: no block twice, and none left
// out, whatever becomes of the clients.
#include <millrace/actors/loader/fill_shares.hpp>
#include <millrace/tests/support/dice.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

using namespace millrace;
using namespace millrace::actors;

namespace {

constexpr auto all = std::numeric_limits<std::uint64_t>::max();

} // namespace

BOOST_AUTO_TEST_SUITE(fill_share)

BOOST_AUTO_TEST_CASE(claims_follow_each_other_and_become_small) {
  fill_shares shares{20};
  shares.join(1);
  BOOST_TEST((shares.claim(1, all, 4) == block_range{0, 4}));
  shares.join(2);
  BOOST_TEST((shares.claim(2, all, 8) == block_range{4, 4})); // 16 / (2 * 2)
  BOOST_TEST((shares.claim(1, all, 8) == block_range{8, 3}));
  BOOST_TEST(shares.unclaimed() == 9u);
  BOOST_TEST(shares.elsewhere(1) == 4u);
  BOOST_TEST(shares.elsewhere(2) == 7u);
  BOOST_TEST(shares.claimed(1) == 7u);
  BOOST_TEST(shares.claimed(3) == 0u);
  std::vector<std::uint64_t> counts;
  while (auto count = shares.claim(2, all, 8).count)
    counts.push_back(count);
  BOOST_TEST((counts == std::vector<std::uint64_t>{2, 1, 1, 1, 1, 1, 1, 1}));
  BOOST_TEST(shares.unclaimed() == 0u);
  BOOST_TEST(!shares.all_written());
}

BOOST_AUTO_TEST_CASE(only_blocks_before_a_number_are_given) {
  fill_shares shares{20};
  BOOST_TEST((shares.claim(1, 3, 8) == block_range{0, 3}));
  BOOST_TEST((shares.claim(1, 3, 8) == block_range{}));
  BOOST_TEST(!shares.has_before(3));
  BOOST_TEST(shares.has_before(4));
  BOOST_TEST((shares.claim(1, 100, 0) == block_range{}));
}

BOOST_AUTO_TEST_CASE(only_what_was_claimed_can_be_written) {
  fill_shares shares{8};
  auto one = shares.claim(1, all, 4);
  BOOST_TEST(!shares.finish(2, one));
  BOOST_TEST(!shares.finish(1, {one.first, one.count + 1}));
  BOOST_TEST(!shares.finish(1, {one.first + 1, one.count}));
  BOOST_TEST(!shares.finish(1, {7, 1}));
  BOOST_TEST(!shares.finish(1, {}));
  BOOST_TEST(shares.finish(1, one));
  BOOST_TEST(!shares.finish(1, one));
  BOOST_TEST(!shares.all_written());
}

BOOST_AUTO_TEST_CASE(what_a_client_leaves_is_claimed_first) {
  fill_shares shares{20};
  shares.join(1);
  shares.join(2);
  auto lost = shares.claim(1, all, 2);
  auto kept = shares.claim(2, all, 2);
  auto more = shares.claim(1, all, 2);
  shares.leave(1);
  BOOST_TEST(!shares.finish(1, lost));
  BOOST_TEST(shares.unclaimed() == 18u);
  BOOST_TEST(shares.elsewhere(2) == 0u);
  BOOST_TEST((shares.claim(2, all, 4) == lost));
  BOOST_TEST((shares.claim(2, all, 4) == block_range{more.first, 4})); // and what follows
  BOOST_TEST(shares.finish(2, kept));
  shares.leave(3); // one that has not joined
}

BOOST_AUTO_TEST_CASE(a_client_has_so_many_claims) {
  fill_shares shares{1 << 20};
  for (std::size_t i = 0; i < fill_shares::claims_max; ++i)
    BOOST_TEST_REQUIRE(shares.claim(1, all, 1).count == 1u);
  BOOST_TEST(shares.claim(1, all, 1).count == 0u);
  BOOST_TEST(shares.claim(2, all, 1).count == 1u);
}

BOOST_AUTO_TEST_CASE(a_set_without_blocks_is_written) {
  fill_shares shares{0};
  BOOST_TEST(shares.all_written());
  BOOST_TEST(shares.claim(1, all, 4).count == 0u);
}

// Clients come, write, and go, at random.
BOOST_AUTO_TEST_CASE(each_block_is_written_once) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    testing::dice random{seed};
    fill_shares shares{random.below(300)};
    std::vector<int> written(shares.blocks()), claimed(shares.blocks());
    std::map<std::uint64_t, std::vector<block_range>> of;
    auto count = [](std::vector<int>& which, const block_range& blocks, int change) {
      for (auto i = blocks.first; i < blocks.first + blocks.count; ++i)
        which[i] += change;
    };
    while (!shares.all_written()) {
      auto client = random.below(5);
      auto& own = of[client];
      if (random.percent(50)) {
        auto got = shares.claim(client, random.below(400), random.below(10));
        count(claimed, got, 1);
        if (got.count > 0)
          own.push_back(got);
      } else if (!own.empty() && random.percent(70)) {
        auto at = own.begin() + static_cast<std::ptrdiff_t>(random.below(own.size()));
        BOOST_TEST_REQUIRE(shares.finish(client, *at));
        count(written, *at, 1);
        own.erase(at);
      } else if (random.percent(20)) {
        shares.leave(client);
        for (auto& one : std::exchange(own, {}))
          count(claimed, one, -1);
      }
      BOOST_TEST_REQUIRE(std::ranges::all_of(claimed, [](int n) { return n == 0 || n == 1; }));
    }
    BOOST_TEST(std::ranges::all_of(written, [](int n) { return n == 1; }));
  }
}

BOOST_AUTO_TEST_SUITE_END()
