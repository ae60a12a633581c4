// Tests when an epoch of a group begins, when it is over, and who is said to be missing.
#include <millrace/actors/broadcast/group_roll.hpp>

#include <boost/test/unit_test.hpp>

#include <random>
#include <set>
#include <string>

using namespace millrace;
using namespace millrace::actors;

namespace {

// A process has its rank plus 100 as its lease, and 100 more after each restart.
enrolled_member process(std::uint32_t rank, std::uint64_t life = 1) {
  return {rank, rank + 100 * life, "process " + std::to_string(rank + 100 * life)};
}

group_roll group_of(std::uint32_t size) {
  group_roll out{"g", size};
  for (std::uint32_t rank = 0; rank < size; ++rank)
    BOOST_TEST(out.join(process(rank), size).ok());
  BOOST_TEST(out.may_begin());
  out.begin();
  return out;
}

} // namespace

BOOST_AUTO_TEST_SUITE(group_rolls)

BOOST_AUTO_TEST_CASE(the_first_epoch_begins_with_all_ranks) {
  group_roll g{"g", 3};
  BOOST_TEST(g.join(process(2), 3).ok());
  BOOST_TEST(g.join(process(0), 3).ok());
  BOOST_TEST(!g.may_begin());
  BOOST_TEST(g.missing() == "rank 1 of 3 has not joined");
  BOOST_TEST(g.join(process(1), 3).ok());
  BOOST_TEST_REQUIRE(g.may_begin());
  g.begin();
  BOOST_TEST(g.epoch() == 1u);
  BOOST_TEST(g.over().ok());
  BOOST_TEST(g.waiting().empty());
}

BOOST_AUTO_TEST_CASE(ranks_that_cannot_be_are_refused) {
  group_roll g{"g", 2};
  BOOST_TEST(g.join(process(0), 2).ok());
  BOOST_TEST((g.join(process(1), 3).code() == errc::invalid_argument));
  BOOST_TEST((g.join(process(2), 2).code() == errc::invalid_argument));
  auto taken = g.join(process(0, 2), 2);
  BOOST_TEST((taken.code() == errc::already_exists));
  BOOST_TEST(taken.detail().find("process 100") != std::string::npos);
  BOOST_TEST(g.join(process(1), 2).ok());
  g.begin();
  BOOST_TEST((g.join(process(1, 2), 2).code() == errc::already_exists));
}

BOOST_AUTO_TEST_CASE(an_epoch_is_over_when_one_goes_and_the_next_one_has_the_others) {
  auto g = group_of(3);
  g.lose(101, "its connection broke");
  BOOST_TEST((g.over().code() == errc::peer_lost));
  BOOST_TEST(g.over().detail().find("rank 1 of group g (process 101)") != std::string::npos);
  BOOST_TEST(g.renew(100, 1).ok());
  BOOST_TEST((g.renew(100, 1).code() == errc::busy));
  BOOST_TEST((g.renew(102, 2).code() == errc::invalid_argument));
  BOOST_TEST((g.renew(101, 1).code() == errc::not_found));
  BOOST_TEST(!g.may_begin());
  BOOST_TEST(g.missing() == "rank 2 has not asked to go on with epoch 2");
  BOOST_TEST(g.renew(102, 1).ok());
  BOOST_TEST_REQUIRE(g.may_begin());
  BOOST_TEST(g.waiting().size() == 2u);
  g.begin();
  BOOST_TEST(g.epoch() == 2u);
  BOOST_TEST(g.over().ok());
}

BOOST_AUTO_TEST_CASE(one_that_returns_is_in_the_epoch_that_all_others_begin) {
  auto g = group_of(2);
  g.lose(101, "");
  BOOST_TEST(g.join(process(1, 2), 2).ok());
  BOOST_TEST(!g.may_begin());
  BOOST_TEST(g.renew(100, 1).ok());
  BOOST_TEST_REQUIRE(g.may_begin());
  g.begin();
  BOOST_TEST(g.has(201));
}

BOOST_AUTO_TEST_CASE(what_is_taken_back_waits_no_more) {
  group_roll g{"g", 2};
  BOOST_TEST(g.join(process(0), 2).ok());
  g.withdraw(100);
  BOOST_TEST(g.is_empty());
  auto h = group_of(2);
  BOOST_TEST(h.renew(100, 1).ok());
  h.withdraw(100);
  BOOST_TEST(h.has(100)); // it is a member still
  BOOST_TEST(h.renew(101, 1).ok());
  BOOST_TEST(!h.may_begin());
}

BOOST_AUTO_TEST_CASE(a_group_that_all_have_left_forms_anew) {
  auto g = group_of(2);
  g.lose(100, "");
  g.lose(101, "");
  BOOST_TEST(g.is_empty());
  BOOST_TEST(g.join(process(0, 2), 2).ok());
  BOOST_TEST(!g.may_begin());
  BOOST_TEST(g.join(process(1, 2), 2).ok());
  BOOST_TEST_REQUIRE(g.may_begin());
  g.begin();
  BOOST_TEST(g.epoch() == 2u);
}

BOOST_AUTO_TEST_CASE(many_that_are_missing_are_counted) {
  group_roll g{"g", 40};
  BOOST_TEST(g.join(process(0), 40).ok());
  BOOST_TEST(
    g.missing() ==
    "ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 23 others of 40 have not "
    "joined");
}

// Whatever happens: an epoch begins only if all that are left have asked for it, it has one process
// for a rank, and it is over if and only if one of it has gone.
BOOST_AUTO_TEST_CASE(histories) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 dice{seed};
    auto any = [&](std::uint32_t below) { return static_cast<std::uint32_t>(dice() % below); };
    const auto size = 1 + any(5);
    group_roll g{"g", size};
    std::set<std::uint64_t> members, asked;
    auto lost = false;
    std::uint64_t life = 0;
    for (int step = 0; step < 60; ++step) {
      auto one = process(any(size), 1 + any(3) + (life += any(2)));
      switch (any(4)) {
      case 0:
        if (g.join(one, size).ok()) {
          BOOST_TEST(!members.contains(one.lease));
          asked.insert(one.lease);
        }
        break;
      case 1:
        for (auto lease : std::set{members})
          if (any(2) == 0 && g.renew(lease, g.epoch()).ok())
            asked.insert(lease);
        break;
      case 2:
        if (auto all = members.empty() ? asked : members; !all.empty()) {
          auto gone = *std::next(all.begin(), any(static_cast<std::uint32_t>(all.size())));
          g.lose(gone, "");
          lost |= members.erase(gone) > 0;
          asked.erase(gone);
        }
        break;
      default:
        if (!asked.empty()) {
          g.withdraw(*asked.begin());
          asked.erase(asked.begin());
        }
      }
      BOOST_TEST_REQUIRE(g.over().ok() == !lost);
      BOOST_TEST_REQUIRE(g.waiting().size() == asked.size());
      if (g.may_begin() && !asked.empty()) {
        BOOST_TEST_REQUIRE(std::ranges::includes(asked, members));
        BOOST_TEST_REQUIRE((!members.empty() || asked.size() == size));
        g.begin();
        members = std::exchange(asked, {});
        lost = false;
        std::set<std::uint64_t> ranks;
        for (auto lease : members)
          ranks.insert(lease % 100);
        BOOST_TEST_REQUIRE(ranks.size() == members.size());
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
