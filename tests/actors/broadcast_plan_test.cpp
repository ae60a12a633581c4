// Tests who receives from whom in a broadcast.
#include <millrace/actors/broadcast/cost_model.hpp>
#include <millrace/actors/broadcast/plan.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <vector>

using namespace millrace;
using namespace millrace::actors;
using enum broadcast_algorithm;

namespace {

// Returns how many sends each member is from the root. Every member must be reached once.
std::vector<unsigned> depths_of(const broadcast_plan& plan) {
  std::vector<unsigned> depth(plan.roles.size(), 0);
  std::vector<std::uint32_t> reached{plan.root};
  for (std::size_t i = 0; i < reached.size() && reached.size() <= plan.roles.size(); ++i) {
    auto from = reached[i];
    for (auto* those : {&plan.roles[from].sends_to, &plan.roles[from].read_by})
      for (auto to : *those) {
        BOOST_TEST_REQUIRE(to < plan.roles.size());
        BOOST_TEST((plan.roles[to].receives_from == from));
        depth[to] = depth[from] + (those == &plan.roles[from].sends_to ? 1 : 0);
        reached.push_back(to);
      }
  }
  BOOST_TEST(!plan.roles[plan.root].receives_from.has_value());
  std::sort(reached.begin(), reached.end());
  BOOST_TEST_REQUIRE(reached.size() == plan.roles.size());
  BOOST_TEST((std::adjacent_find(reached.begin(), reached.end()) == reached.end()));
  return depth;
}

unsigned deepest(const broadcast_plan& plan) { return std::ranges::max(depths_of(plan)); }

void expect_one_leader_a_host(
  const broadcast_plan& plan, const std::vector<std::uint32_t>& host_of) {
  std::map<std::uint32_t, std::uint32_t> leader_of;
  for (auto leader : plan.leaders)
    BOOST_TEST(leader_of.emplace(host_of[leader], leader).second);
  BOOST_TEST(plan.leaders.front() == plan.root);
  for (std::uint32_t member = 0; member < host_of.size(); ++member) {
    auto& role = plan.roles[member];
    BOOST_TEST(role.host == host_of[member]);
    BOOST_TEST_REQUIRE(leader_of.contains(role.host));
    auto leads = leader_of.at(role.host) == member;
    BOOST_TEST((leads || role.sends_to.empty()));
    BOOST_TEST((leads || role.read_by.empty()));
    for (auto reader : role.read_by)
      BOOST_TEST(host_of[reader] == role.host);
    for (auto to : role.sends_to)
      BOOST_TEST(host_of[to] != role.host);
  }
}

std::vector<std::uint32_t> alone(std::uint32_t members) { return deal_members(members, members); }

broadcast_plan planned(
  const std::vector<std::uint32_t>& host_of, std::uint32_t root, broadcast_algorithm algorithm,
  unsigned k = 2) {
  return plan_broadcast(host_of, root, algorithm, k).value();
}

} // namespace

BOOST_AUTO_TEST_SUITE(broadcast_plans)

BOOST_AUTO_TEST_CASE(every_member_receives_once_from_whoever_the_root_is) {
  for (std::uint32_t members : {1u, 2u, 3u, 7u, 16u, 27u, 40u})
    for (std::uint32_t hosts = 1; hosts <= members; hosts += 1 + hosts / 3)
      for (std::uint32_t root = 0; root < members; root += 1 + members / 5)
        for (auto algorithm : {ring, knomial, multicast})
          for (unsigned k : {2u, 3u, 5u, 50u}) {
            auto host_of = deal_members(members, hosts);
            auto plan = planned(host_of, root, algorithm, k);
            BOOST_TEST(plan.leaders.size() == hosts);
            depths_of(plan);
            expect_one_leader_a_host(plan, host_of);
          }
}

BOOST_AUTO_TEST_CASE(hosts_may_be_any_numbers_and_mixed) {
  std::vector<std::uint32_t> host_of{9, 4, 9, 1'000'000, 4, 9};
  auto plan = planned(host_of, 4, ring);
  expect_one_leader_a_host(plan, host_of);
  BOOST_TEST(
    plan.leaders == (std::vector<std::uint32_t>{4, 3, 0}), boost::test_tools::per_element());
  BOOST_TEST((plan.roles[4].read_by == std::vector<std::uint32_t>{1}));
  BOOST_TEST((plan.roles[0].read_by == std::vector<std::uint32_t>{2, 5}));
  BOOST_TEST((plan.roles[5].receives_from == 0u));
}

BOOST_AUTO_TEST_CASE(a_ring_passes_every_host_once) {
  for (std::uint32_t hosts : {1u, 2u, 9u, 100u}) {
    auto plan = planned(alone(hosts), hosts / 2, ring);
    BOOST_TEST(deepest(plan) == hosts - 1);
    for (auto& role : plan.roles)
      BOOST_TEST(role.sends_to.size() <= 1u);
  }
}

BOOST_AUTO_TEST_CASE(rings_of_two_roots_have_the_same_links_but_one) {
  auto host_of = alone(10);
  auto one = planned(host_of, 0, ring), other = planned(host_of, 6, ring);
  std::size_t different = 0;
  for (std::size_t i = 0; i < 10; ++i)
    different += one.roles[i].sends_to != other.roles[i].sends_to;
  BOOST_TEST(different == 2u); // one ends at member 9, the other at 5
}

BOOST_AUTO_TEST_CASE(trees_have_the_depth_and_the_degree_of_the_equations) {
  for (unsigned k : {2u, 3u, 4u, 7u, 16u})
    for (std::uint32_t hosts = 1; hosts <= 300; ++hosts) {
      auto plan = planned(alone(hosts), hosts / 3, knomial, k);
      auto rounds = knomial_rounds(hosts, k);
      BOOST_TEST(deepest(plan) == knomial_depth(hosts, k));
      BOOST_TEST(deepest(plan) <= rounds);
      auto degree = plan.roles[plan.root].sends_to.size();
      BOOST_TEST(degree == knomial_degree(hosts, k));
      BOOST_TEST(degree <= (k - 1) * rounds);
      for (auto& role : plan.roles)
        BOOST_TEST(role.sends_to.size() <= degree);
    }
}

BOOST_AUTO_TEST_CASE(a_parent_serves_its_largest_subtree_first) {
  auto plan = planned(alone(9), 0, knomial, 3);
  BOOST_TEST((plan.roles[0].sends_to == std::vector<std::uint32_t>{6, 3, 2, 1}));
  BOOST_TEST((plan.roles[3].sends_to == std::vector<std::uint32_t>{5, 4}));
  BOOST_TEST((plan.roles[6].sends_to == std::vector<std::uint32_t>{8, 7}));
}

BOOST_AUTO_TEST_CASE(a_multicast_reaches_all_leaders_from_the_root) {
  auto plan = planned(deal_members(12, 4), 5, multicast);
  BOOST_TEST((plan.roles[5].sends_to == std::vector<std::uint32_t>{6, 9, 0}));
  BOOST_TEST(deepest(plan) == 1u);
}

BOOST_AUTO_TEST_CASE(members_are_dealt_out_evenly) {
  BOOST_TEST((deal_members(7, 3) == std::vector<std::uint32_t>{0, 0, 0, 1, 1, 2, 2}));
  BOOST_TEST((deal_members(4, 1) == std::vector<std::uint32_t>(4, 0)));
}

BOOST_AUTO_TEST_CASE(plans_that_make_no_sense_are_refused_with_the_reason) {
  auto said = [](std::uint32_t members, std::uint32_t root, unsigned k) {
    auto bad = plan_broadcast(std::vector<std::uint32_t>(members), root, knomial, k);
    BOOST_TEST_REQUIRE(!bad.has_value());
    BOOST_TEST((bad.error().code() == errc::invalid_argument));
    return bad.error().detail();
  };
  BOOST_TEST(said(0, 0, 2) == "a broadcast to 0 members: a group has 1 to 65536");
  BOOST_TEST(said(65'537, 0, 2) == "a broadcast to 65537 members: a group has 1 to 65536");
  BOOST_TEST(said(4, 4, 2) == "a broadcast from member 4: the last of 4 members has number 3");
  BOOST_TEST(said(4, 0, 1) == "a k-nomial tree with k = 1: k is 2 at least");
}

BOOST_AUTO_TEST_SUITE_END()
