// Tests what the pool of a data server keeps of samples that are appended to a set.
#include "pool_world.hpp"

#include <boost/test/unit_test.hpp>

#include <utility>

using namespace millrace;
using namespace millrace::storage::samples;
using namespace millrace::testing;

namespace {

// Samples that are appended to a set: of `regions` regions.
set_info more_of(const set_info& set, std::uint64_t regions, std::uint64_t source) {
  auto out = set_of(set.name, regions, source);
  out.extension.of = is_divided(set) ? set.division.whole : set.id;
  return out;
}

// Part `index` of samples that are divided among two nodes.
set_info part_of_two(set_info out, const set_id& whole, std::uint32_t index) {
  out.division = {
    whole,
    index,
    {"n0", "n1"},
    2 * out.samples,
    {{2 * out.samples * 1000, 2 * out.samples * 1000}}};
  BOOST_REQUIRE(place_fields(out).ok());
  return out;
}

set_info described(pool_world& in, const std::string& name) {
  return in.pool->look_up(name).value().info;
}

} // namespace

BOOST_AUTO_TEST_SUITE(appended_sets)

BOOST_AUTO_TEST_CASE(what_is_appended_belongs_to_the_set) {
  pool_world w;
  auto base = preload(w, set_of("a", 2))->info();
  auto filling = reserve(w, more_of(base, 1, 7), me);
  BOOST_TEST(described(w, "a").appended.empty()); // nobody sees it before it is published
  BOOST_TEST((why(w, more_of(base, 1, 8)).code() == errc::busy));
  auto more = w.pool->publish(filling).value()->info();
  BOOST_TEST(validate(more).ok());
  auto second = preload(w, more_of(base, 3, 8))->info();
  auto found = described(w, "a");
  BOOST_TEST(validate(found).ok());
  BOOST_TEST_REQUIRE(found.appended.size() == 2u);
  BOOST_TEST((found.appended[0] == appended_of(more)));
  BOOST_TEST((found.appended[1] == appended_of(second)));
  BOOST_TEST(found.appended[1].number > found.appended[0].number);
  BOOST_TEST((w.pool->list({}, {}, 10).at(0) == found));
  BOOST_TEST(w.pool->list({}, {}, 10, true).size() == 1u);
  BOOST_TEST((w.pool->look_up("a", more.id).value().info == more));
  BOOST_TEST((w.pool->look_up("a", base.id).value().info == found));
  // The whole is a set of all samples.
  auto whole = whole_of(found).value();
  auto all = set_of("a", 6);
  BOOST_TEST(whole.samples == 6000u);
  BOOST_TEST(whole.identity == all.identity);
  BOOST_TEST((whole.fields == all.fields));
  BOOST_TEST(whole.source != base.source);
  BOOST_TEST(preloaded_samples(whole) == 2000u);
  // It goes with the set.
  BOOST_TEST(w.pool->stats().used_bytes == 6 * mib);
  BOOST_TEST(w.pool->stats().sets == 1u);
  BOOST_TEST(w.pool->unload("a", {}, me).ok());
  BOOST_TEST(w.pool->stats().used_bytes == mib); // what this test holds
  filling.reset();
  BOOST_TEST(w.pool->stats().unloads == 1u);
}

BOOST_AUTO_TEST_CASE(the_same_samples_are_appended_once) {
  pool_world w;
  auto base = preload(w, set_of("a", 1))->info();
  auto more = preload(w, more_of(base, 1, 7))->info();
  auto again = w.pool->reserve(more_of(base, 1, 7), me).value();
  BOOST_TEST_REQUIRE(again.existing != nullptr);
  BOOST_TEST((again.described == more));
  // Those of the preload are there as well.
  auto first = w.pool->reserve(more_of(base, 1, 1), me).value();
  BOOST_TEST_REQUIRE(first.existing != nullptr);
  BOOST_TEST((first.described == described(w, "a")));
  // A preload finds its set, and all that belongs to it.
  BOOST_TEST((w.pool->reserve(set_of("a", 1), me).value().described == described(w, "a")));
  auto others = more_of(base, 1, 7);
  others.left_out = {"b.jpg"};
  BOOST_TEST((why(w, others).code() == errc::already_exists));
}

BOOST_AUTO_TEST_CASE(an_append_that_does_not_fit_is_refused) {
  pool_world w;
  auto base = preload(w, set_of("a", 1))->info();
  auto more = more_of(base, 1, 7);
  BOOST_TEST((why(w, more, "user 1001").code() == errc::permission_denied));
  auto others = more;
  others.fields[0].sample.type = dtype::i8;
  BOOST_TEST((why(w, others).code() == errc::invalid_argument));
  BOOST_TEST(says(why(w, others), "field 0"));
  others = more;
  others.fields.push_back({{"y", dtype::u8, {1}}});
  BOOST_TEST((why(w, others).code() == errc::invalid_argument));
  others = part_of_two(more, random_id<set_id>(), 0);
  BOOST_TEST((why(w, others).code() == errc::invalid_argument));
  others = more;
  others.extension.of = random_id<set_id>();
  BOOST_TEST((why(w, others).code() == errc::not_found));
  others.name = "b";
  BOOST_TEST((why(w, others).code() == errc::not_found));
  auto filling = reserve(w, set_of("b", 1));
  BOOST_TEST((why(w, others).code() == errc::busy));
  auto window = set_of("w", 1);
  window.window_bytes = mib;
  auto kept = preload(w, window)->info();
  BOOST_TEST((why(w, more_of(kept, 1, 7)).code() == errc::invalid_argument));
  BOOST_TEST((why(w, more_of(base, 9, 7)).code() == errc::no_space));
  BOOST_TEST((w.pool->reserve(more, "user 0").value().filling->info().owner == me));
}

BOOST_AUTO_TEST_CASE(an_append_that_ends_early_leaves_nothing) {
  pool_world w;
  auto base = preload(w, set_of("a", 1))->info();
  reserve(w, more_of(base, 1, 7)).reset();
  BOOST_TEST(w.pool->stats().used_bytes == mib);
  // One that was unloaded meanwhile.
  auto filling = reserve(w, more_of(base, 1, 7));
  BOOST_TEST(w.pool->unload("a", {}, me).ok());
  BOOST_TEST((w.pool->publish(filling).error().code() == errc::not_found));
  auto other = preload(w, set_of("a", 1))->info();
  filling.reset();
  BOOST_TEST(w.pool->stats().used_bytes == mib);
  BOOST_TEST(described(w, "a").appended.empty());
  // One that is undone.
  filling = reserve(w, more_of(other, 1, 7));
  auto id = filling->info().id;
  BOOST_TEST(w.pool->unload("a", id, me).ok());
  BOOST_TEST((w.pool->publish(filling).error().code() == errc::not_found));
  filling.reset();
  auto first = preload(w, more_of(other, 1, 7))->info(),
       last = preload(w, more_of(other, 1, 8))->info();
  BOOST_TEST((w.pool->unload("a", first.id, "user 1001").code() == errc::permission_denied));
  BOOST_TEST(w.pool->unload("a", first.id, me).ok());
  auto left = described(w, "a");
  BOOST_TEST_REQUIRE(left.appended.size() == 1u);
  BOOST_TEST((left.appended[0].id == last.id));
  BOOST_TEST(w.pool->stats().used_bytes == 2 * mib);
  BOOST_TEST(preload(w, more_of(other, 1, 7))->info().extension.number > last.extension.number);
}

BOOST_AUTO_TEST_CASE(a_part_at_another_node_has_the_number_that_the_home_says) {
  pool_world home, other;
  auto whole = random_id<set_id>(), more = random_id<set_id>();
  auto base = preload(home, part_of_two(set_of("a", 1), whole, 0))->info();
  preload(other, part_of_two(set_of("a", 1), whole, 1));
  auto first = preload(home, part_of_two(more_of(base, 1, 7), more, 0))->info();
  auto rest = part_of_two(more_of(base, 1, 7), more, 1);
  rest.extension.number = first.extension.number;
  auto part = preload(other, rest)->info();
  BOOST_TEST((other.pool->look_up("a", more).value().info == part));
  BOOST_TEST(described(other, "a").appended.empty()); // the home describes the set
  BOOST_TEST((other.pool->reserve(rest, me).value().described == part));
  // The home was started anew, and the next append has the same number there.
  auto next = part_of_two(more_of(base, 2, 9), random_id<set_id>(), 1);
  preload(other, next);
  BOOST_TEST(!other.pool->look_up("a", more).has_value());
  BOOST_TEST(other.pool->stats().used_bytes == 3 * mib);
  // Without the part of the set there is nothing to append to.
  pool_world empty;
  BOOST_TEST((why(empty, rest).code() == errc::not_found));
  BOOST_TEST(other.pool->unload("a", whole, me).ok());
  BOOST_TEST(other.pool->stats().used_bytes == 0u);
}

// Also those without samples, which take no memory of the pool, under numbers that the client says.
BOOST_AUTO_TEST_CASE(the_number_of_appends_is_bounded) {
  pool_world other{8, {.sets_max = 1000}}, few{8, {.sets_max = 3}};
  auto whole = random_id<set_id>();
  auto base = part_of_two(set_of("a", 1), whole, 1);
  auto append = [&](pool_world& to, std::uint32_t number) {
    auto part = part_of_two(more_of(base, 0, 1000 + number), random_id<set_id>(), 1);
    part.extension.number = number;
    auto got = to.pool->reserve(part, me);
    return got ? to.pool->publish(got->filling).has_value() : false;
  };
  preload(other, base);
  for (std::uint32_t i = 0; i < appends_max; ++i)
    BOOST_TEST_REQUIRE(append(other, 7 * i));
  BOOST_TEST(!append(other, 5));
  BOOST_TEST(append(other, 7)); // in place of one
  preload(few, base);
  BOOST_TEST((append(few, 0) && append(few, 1) && !append(few, 2)));
}

BOOST_AUTO_TEST_CASE(quota_and_eviction_count_what_was_appended) {
  pool_world w{6, {.sets_max = 100, .quota_bytes = 3 * mib, .when_full = room_policy::evict}};
  auto base = preload(w, set_of("a", 1))->info();
  // Root's memory for it is the owner's.
  auto id =
    w.pool->publish(w.pool->reserve(more_of(base, 1, 7), "user 0")->filling).value()->info().id;
  auto reader = w.pool->find("a", id).value();
  BOOST_TEST((why(w, set_of("b", 2)).code() == errc::no_space)); // somebody reads what was appended
  // It does not make room for its own append.
  BOOST_TEST((why(w, more_of(base, 2, 8)).code() == errc::no_space));
  BOOST_TEST(w.pool->find("a").has_value());
  reader.reset();
  BOOST_TEST((why(w, more_of(base, 2, 8)).code() == errc::no_space));
  auto filling = reserve(w, more_of(base, 1, 8));
  BOOST_TEST((why(w, set_of("b", 2)).code() == errc::no_space)); // samples are being appended
  filling.reset();
  auto got = w.pool->reserve(set_of("b", 3), me);
  BOOST_REQUIRE(got);
  BOOST_TEST(got->evicted == std::vector<std::string>{"a"}, boost::test_tools::per_element());
  BOOST_TEST(w.pool->stats().used_bytes == 3 * mib);
  BOOST_TEST(w.pool->stats().evictions == 1u);
}

BOOST_AUTO_TEST_CASE(what_was_appended_goes_with_the_last_use_of_the_set) {
  pool_world w;
  auto wanted = set_of("a", 1);
  wanted.while_used = true;
  auto base = preload(w, wanted)->info();
  auto more = preload(w, more_of(base, 1, 7))->info();
  BOOST_TEST(!w.pool->end_use("a", more.id));
  BOOST_TEST(w.pool->end_use("a", base.id));
  BOOST_TEST(w.pool->stats().used_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(there_are_no_more_appends_than_may_be) {
  pool_world w{8, {.sets_max = 1000}};
  auto empty = set_of("a", 1);
  auto base = preload(w, empty)->info();
  auto more = more_of(base, 1, 0);
  more.samples = 0;
  for (std::uint64_t i = 0; i < appends_max; ++i) {
    more.source = 100 + i;
    preload(w, more);
  }
  BOOST_TEST(validate(described(w, "a")).ok());
  more.source = 99;
  BOOST_TEST((why(w, more).code() == errc::no_space));
  BOOST_TEST(w.pool->stats().used_bytes == mib);
  auto lying = described(w, "a");
  lying.appended.push_back(lying.appended.back());
  BOOST_TEST((validate(lying).code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_SUITE_END()
