// A group that all its providers have left in the files: what becomes of its models.
#include "nodes_of_one_file.hpp"

#include <millrace/tests/support/held_completion.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr int models = 20;

} // namespace

BOOST_AUTO_TEST_SUITE(left_group)

BOOST_AUTO_TEST_CASE(models_of_a_group_that_all_providers_have_left_are_found_under_its_name) {
  for (auto& before : {provider_list{{"a"}, {"b"}}, provider_list{{"a"}}}) {
    nodes_of_one_file c;
    auto first = c.run(before).repository();
    for (int i = 0; i < models; ++i)
      BOOST_TEST(store_number(first, model_name(i), 1 + i).has_value());
    provider_list now;
    for (auto& p : before)
      now.emplace_back(p.name, p.rests, "g2");
    now.emplace_back("n", "n", "new"); // knows nothing of them
    std::ranges::reverse(now);
    auto client = c.run(now);
    auto left = client.repository();
    // First by one who has not listed.
    for (int i = 0; i < models; ++i)
      BOOST_TEST(outcome_of(load_number(left, model_name(i))) == std::to_string(1 + i));
    auto listed = c.place.with(now).repository().list().result();
    BOOST_TEST_REQUIRE(listed.has_value(), why(listed));
    BOOST_TEST(listed->found.size() == models);
    BOOST_TEST(client.repository("g2").list().get().found.empty());
    auto blocked = store_number(client.repository("g2"), model_name(0), 7);
    BOOST_TEST_REQUIRE(!blocked.has_value());
    BOOST_TEST((blocked.error().code() == errc::already_exists));
    BOOST_TEST(blocked.error().detail().find("name that group") != std::string::npos);
    // The group is over, so it gets no new models.
    auto stored = store_number(left, "later", 7);
    BOOST_TEST((!stored && stored.error().code() == errc::not_found));
    BOOST_TEST(why(stored).find("there are: g2, new") != std::string::npos, why(stored));
    auto erased = left.erase(model_name(0)).result();
    BOOST_TEST(erased.has_value(), why(erased));
    BOOST_TEST(!load_number(left, model_name(0)).has_value());
    stored = store_number(client.repository("g2"), model_name(0), 7);
    BOOST_TEST(stored.has_value(), why(stored));
    // A group that never was.
    auto never = client.repository("g3").list().result();
    BOOST_TEST((!never && never.error().code() == errc::not_found), why(never));
    BOOST_TEST(why(never).find("no provider is in group 'g3'") != std::string::npos, why(never));
    BOOST_TEST(!load_number(client.repository("g3"), model_name(1)).has_value());
  }
}

BOOST_AUTO_TEST_SUITE_END()
