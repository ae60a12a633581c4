// Tests what follows from the views of a group: where a name may be, and which version may be older
// than another one.
#include <millrace/core/placement.hpp>

#include <boost/test/unit_test.hpp>

#include <tuple>

using namespace millrace;

namespace {

group_view view_of(
  std::uint64_t number, const std::vector<std::string>& ids, bool forgets = false) {
  group_view v{number, {}};
  for (auto& id : ids)
    v.members.push_back({id, "name-" + id, "n", {}, 1, forgets});
  return v;
}

// The views 1 to `views`, each with as many members.
group_history history_of(std::uint64_t views, std::size_t members) {
  std::vector<std::string> ids;
  for (std::size_t i = 0; i < members; ++i)
    ids.push_back(std::to_string(10'000 + i));
  group_history h{"g", {}, 0};
  for (std::uint64_t number = 1; number <= views; ++number)
    h.views.push_back(view_of(number, ids));
  return h;
}

// A name that the view {a, b} places at `first`, and {a, b, c} at `then`.
std::string name_that_goes(const std::string& first, const std::string& then) {
  for (int i = 0;; ++i) {
    auto name = "m" + std::to_string(i);
    if (
      home_of(name, view_of(1, {"a", "b"}))->id == first &&
      home_of(name, view_of(2, {"a", "b", "c"}))->id == then)
      return name;
  }
}

} // namespace

BOOST_AUTO_TEST_SUITE(views)

BOOST_AUTO_TEST_CASE(a_provider_answers_alone_for_names_that_every_view_places_there) {
  group_history h{"g", {view_of(1, {"a", "b"}), view_of(2, {"a", "b", "c"})}, 2};
  auto stays = name_that_goes("a", "a"), goes = name_that_goes("a", "c");
  BOOST_TEST(rests_only_at(h, stays, "a", 0));
  BOOST_TEST(!rests_only_at(h, stays, "b", 0));
  BOOST_TEST(!rests_only_at(h, goes, "a", 0));
  BOOST_TEST(!rests_only_at(h, goes, "c", 0));
  BOOST_TEST(rests_only_at(h, goes, "c", 2)); // stored since
  h.views.insert(h.views.begin(), {0, {}});
  BOOST_TEST(!rests_only_at(h, stays, "a", 0)); // it may have been anywhere before
  BOOST_TEST(rests_only_at(h, stays, "a", 1));
}

BOOST_AUTO_TEST_CASE(a_version_is_not_trusted_when_what_replaced_it_may_be_gone) {
  auto goes = name_that_goes("b", "c");
  auto there = view_of(2, {"a", "b", "c"}), away = view_of(3, {"c"});
  group_history h{"g", {view_of(1, {"a", "b"}), there, away, view_of(4, {"a", "b"})}, 4};
  BOOST_TEST(superseded_by(h, goes, "b", 1, {}).empty());
  BOOST_TEST(superseded_by(h, goes, "b", 1, {"c"}).find("name-c") != std::string::npos);
  BOOST_TEST(superseded_by(h, goes, "b", 3, {"c"}).empty());
  // While b was a member, its version would have been removed first.
  h.views.erase(h.views.begin() + 2);
  BOOST_TEST(superseded_by(h, goes, "b", 1, {"c"}).empty());
  h.views[1] = view_of(2, {"c"}, true);
  BOOST_TEST(!superseded_by(h, goes, "b", 1, {}).empty());
}

BOOST_AUTO_TEST_CASE(views_of_peers_are_checked) {
  group_history good{
    "g", {{0, {}}, view_of(1, {"a"}), view_of(1, {"b"}), view_of(2, {"a", "b"})}, 2};
  BOOST_TEST(validate(good).ok());
  auto bad = [&](auto change) {
    auto h = good;
    change(h);
    return validate(h).code() == errc::invalid_argument;
  };
  BOOST_TEST(bad([](auto& h) { h.group.clear(); }));
  BOOST_TEST(bad([](auto& h) { h.views.clear(); }));
  BOOST_TEST(bad([](auto& h) { h.settled = 1; }));
  BOOST_TEST(bad([](auto& h) {
    h.views.pop_back();
    h.settled = 0;
  }));
  BOOST_TEST(bad([](auto& h) { h.views.back().members.clear(); }));
  BOOST_TEST(bad([](auto& h) { h.views.back().members[0].weight = 0; }));
  BOOST_TEST(bad([](auto& h) { std::swap(h.views.back().members[0], h.views.back().members[1]); }));
  BOOST_TEST(bad([](auto& h) { h.views.resize(group_views_max + 1, h.views.back()); }));
  BOOST_TEST(bad([](auto& h) { h.views.back().members[0].addresses = {""}; }));
  BOOST_TEST(bad([](auto& h) { h = history_of(5, group_members_max); }));
}

BOOST_AUTO_TEST_CASE(the_oldest_views_give_way_to_one_without_members) {
  for (auto [views, members, left] :
       {std::tuple{256, 1, 256},
        {257, 1, 256},
        {300, 4, 256},
        {4, 4096, 4},
        {5, 4096, 5},
        {20, 4096, 5}}) {
    auto h = history_of(views, static_cast<std::size_t>(members));
    auto newest = h.views.back();
    bound(h);
    BOOST_TEST(h.views.size() == static_cast<std::size_t>(left));
    BOOST_TEST((h.views.back() == newest));
    auto too_many = views > 256 || views * members > 16'384;
    BOOST_TEST(h.views.front().members.empty() == too_many);
    BOOST_TEST(validate(h).ok(), validate(h).to_string());
  }
}

BOOST_AUTO_TEST_SUITE_END()
