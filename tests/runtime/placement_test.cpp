// Tests weighted rendezvous hashing: balance, stability, weights.
#include <millrace/runtime/client/calls/placement.hpp>

#include <boost/test/unit_test.hpp>

#include <map>

using namespace millrace;
using runtime::checkpoint_providers;
using runtime::place;
using runtime::place_checkpoints;

namespace {

std::vector<provider_entry> providers(int count) {
  std::vector<provider_entry> out;
  for (int i = 0; i < count; ++i) {
    provider_entry p;
    p.name = "p" + std::to_string(i);
    p.group = "default";
    out.push_back(p);
  }
  return out;
}

std::string winner(const std::string& model, const std::vector<provider_entry>& all) {
  return all[place(model, "default", all).value()].name;
}

constexpr int models = 20'000;
constexpr double all_models = models;

} // namespace

BOOST_AUTO_TEST_SUITE(placement)

BOOST_AUTO_TEST_CASE(names_spread_evenly) {
  auto all = providers(4);
  std::map<std::string, int> count;
  for (int i = 0; i < models; ++i)
    ++count[winner("model/" + std::to_string(i), all)];
  for (auto& [name, n] : count)
    BOOST_TEST((n > all_models / 4 * 0.93 && n < all_models / 4 * 1.07));
}

BOOST_AUTO_TEST_CASE(a_new_provider_takes_only_its_share_and_moves_nothing_else) {
  auto four = providers(4);
  auto five = providers(5);
  int moved = 0;
  for (int i = 0; i < models; ++i) {
    auto name = "model/" + std::to_string(i);
    auto before = winner(name, four);
    auto after = winner(name, five);
    if (before == after)
      continue;
    BOOST_TEST_REQUIRE(after == "p4");
    ++moved;
  }
  BOOST_TEST((moved > all_models / 5 * 0.93 && moved < all_models / 5 * 1.07));
}

BOOST_AUTO_TEST_CASE(the_order_of_the_list_does_not_matter) {
  auto all = providers(6);
  auto reversed = all;
  std::reverse(reversed.begin(), reversed.end());
  for (int i = 0; i < 1000; ++i)
    BOOST_TEST(winner(std::to_string(i), all) == winner(std::to_string(i), reversed));
}

BOOST_AUTO_TEST_CASE(weights_shift_the_shares) {
  auto all = providers(2);
  all[1].weight = 3;
  int heavy = 0;
  for (int i = 0; i < models; ++i)
    heavy += winner(std::to_string(i), all) == "p1";
  BOOST_TEST((heavy > models * 0.73 && heavy < models * 0.77));
}

BOOST_AUTO_TEST_CASE(an_unknown_group_names_the_groups_there_are) {
  auto refused = place("m", "elsewhere", providers(1));
  BOOST_TEST((refused.error().code() == errc::not_found));
  BOOST_TEST(refused.error().detail().find("default") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(checkpoints_go_to_those_who_keep_some) {
  auto all = providers(4);
  for (auto i : {1u, 3u}) {
    all[i].checkpoints = true;
    all[i].group = i == 1 ? "default" : "far";
  }
  std::map<std::string, int> count;
  for (int i = 0; i < 1000; ++i) {
    auto name = "model/" + std::to_string(i);
    ++count[all[place_checkpoints(name, "", all).value()].name];
    BOOST_TEST(all[place_checkpoints(name, "far", all).value()].name == "p3");
  }
  BOOST_TEST(count.size() == 2u);
  BOOST_TEST((count["p1"] > 300 && count["p3"] > 300));
  auto none = place_checkpoints("m", "near", all);
  BOOST_TEST((none.error().code() == errc::not_found));
  BOOST_TEST(none.error().detail().find("group near") != std::string::npos);
  BOOST_TEST((checkpoint_providers("", all) == std::vector<std::size_t>{1, 3}));
}

BOOST_AUTO_TEST_SUITE_END()
