// Tests which sets the pool of a data server takes, who may unload them, and when their memory is
// lent again.
#include "pool_world.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>

using namespace millrace;
using namespace millrace::storage::samples;
using namespace millrace::testing;

BOOST_AUTO_TEST_SUITE(sample_pools)

BOOST_AUTO_TEST_CASE(a_set_gets_as_many_regions_as_its_addresses_need) {
  pool_world w;
  auto set = set_of("digits", 3);
  auto filling = reserve(w, set);
  auto& info = filling->info();
  BOOST_TEST(!info.id.is_nil());
  BOOST_TEST(info.owner == me);
  BOOST_TEST(info.preloaded_at_ns > 0u);
  BOOST_TEST(validate(info).ok());
  auto& regions = filling->regions();
  BOOST_REQUIRE(regions.size() == 3u);
  std::set<std::uint32_t> indices;
  std::set<std::byte*> places;
  std::uint64_t all = 0;
  for (auto& region : regions) {
    indices.insert(region.index);
    places.insert(region.bytes.data());
    all += region.bytes.size();
    BOOST_TEST(region.generation == w.generation(region));
  }
  BOOST_TEST(indices.size() == 3u);
  BOOST_TEST(places.size() == 3u);
  BOOST_TEST(all == set.size_bytes); // nothing beyond the set
  BOOST_TEST(regions[0].bytes.size() == mib);
  auto stats = w.pool->stats();
  BOOST_TEST(stats.capacity_bytes == 8 * mib);
  BOOST_TEST(stats.used_bytes == 3 * mib);
  BOOST_TEST(stats.region_bytes == mib);
  BOOST_TEST(stats.filling == 1u);
  BOOST_TEST(stats.sets == 0u);
}

BOOST_AUTO_TEST_CASE(a_set_that_does_not_fit_takes_nothing) {
  pool_world w;
  auto held = preload(w, set_of("a", 5));
  auto full = why(w, set_of("b", 4));
  BOOST_TEST((full.code() == errc::no_space));
  BOOST_TEST(
    says(full, fmt::format("asked for {} bytes, free are {} of {}", 4 * mib, 3 * mib, 8 * mib)),
    full.to_string());
  BOOST_TEST(says(full, "data.capacity"), full.to_string());
  BOOST_TEST(w.pool->stats().used_bytes == 5 * mib);
  BOOST_TEST(w.pool->stats().filling == 0u);
  reserve(w, set_of("b", 3));
}

BOOST_AUTO_TEST_CASE(no_more_sets_than_the_bound_have_names) {
  pool_world w{8, {.sets_max = 2}};
  auto a = reserve(w, set_of("a", 1));
  preload(w, set_of("b", 1));
  auto full = why(w, set_of("c", 1));
  BOOST_TEST((full.code() == errc::no_space));
  BOOST_TEST(says(full, "2 sets"), full.to_string());
  a.reset();
  preload(w, set_of("c", 1));
}

BOOST_AUTO_TEST_CASE(an_abandoned_filling_gives_its_name_and_its_regions_back) {
  pool_world w{3};
  auto filling = reserve(w, set_of("a", 3));
  auto generation = filling->regions()[0].generation;
  filling.reset();
  BOOST_TEST(w.pool->stats().used_bytes == 0u);
  BOOST_TEST(w.pool->stats().filling == 0u);
  BOOST_TEST((w.pool->find("a").error().code() == errc::not_found));
  filling = reserve(w, set_of("a", 3, 2));
  BOOST_TEST(filling->regions()[0].generation > generation);
}

BOOST_AUTO_TEST_CASE(a_set_is_found_once_it_is_published) {
  pool_world w;
  auto filling = reserve(w, set_of("a", 2));
  auto missing = w.pool->find("a");
  BOOST_REQUIRE(!missing);
  BOOST_TEST((missing.error().code() == errc::not_found));
  BOOST_TEST(says(missing.error(), me), missing.error().to_string());
  std::memset(filling->regions()[1].bytes.data(), 7, 100);
  BOOST_REQUIRE(w.pool->publish(filling));
  // What fills it may go now.
  filling.reset();
  auto found = w.pool->find("a");
  BOOST_REQUIRE(found);
  BOOST_TEST(((*found)->regions()[1].bytes[99] == std::byte{7}));
  auto stats = w.pool->stats();
  BOOST_TEST(stats.sets == 1u);
  BOOST_TEST(stats.filling == 0u);
  BOOST_TEST(stats.preloads == 1u);
}

BOOST_AUTO_TEST_CASE(a_filling_is_published_once_and_in_its_own_pool) {
  pool_world w, other;
  auto filling = reserve(w, set_of("a", 1));
  auto refused = [&](pool_world& in) {
    auto got = in.pool->publish(filling);
    return !got && got.error().code() == errc::invalid_argument;
  };
  auto theirs = reserve(other, set_of("a", 1));
  BOOST_TEST(refused(other));
  BOOST_REQUIRE(w.pool->publish(filling));
  BOOST_TEST(refused(w));
  BOOST_REQUIRE(w.pool->unload("a", {}, me).ok());
  BOOST_TEST(refused(w));
  auto next = reserve(w, set_of("a", 1));
  BOOST_TEST(refused(w));
  // Its end abandons nothing of the next one.
  filling.reset();
  BOOST_TEST(w.pool->stats().filling == 1u);
  BOOST_TEST(w.pool->publish(next).has_value());
}

BOOST_AUTO_TEST_CASE(readers_finish_after_an_unload) {
  pool_world w{2};
  auto reader = preload(w, set_of("a", 2));
  auto first = reader->regions()[0];
  std::memset(first.bytes.data(), 7, first.bytes.size());
  BOOST_TEST(w.pool->unload("a", {}, me).ok());
  BOOST_TEST((w.pool->find("a").error().code() == errc::not_found));
  BOOST_TEST(w.pool->stats().sets == 0u);
  BOOST_TEST(w.pool->stats().unloads == 1u);
  // The name is free, the memory is not.
  BOOST_TEST(w.pool->stats().used_bytes == 2 * mib);
  BOOST_TEST((why(w, set_of("a", 1)).code() == errc::no_space));
  BOOST_TEST(w.generation(first) == first.generation);
  BOOST_TEST((first.bytes.back() == std::byte{7}));
  reader.reset();
  BOOST_TEST(w.pool->stats().used_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(a_region_has_a_later_generation_before_it_is_lent_again) {
  pool_world w{2};
  for (auto round = 0; round < 3; ++round) {
    auto set = preload(w, set_of("a", 2));
    auto former = set->regions();
    set.reset();
    BOOST_TEST(w.generation(former[0]) == former[0].generation); // the table has it
    BOOST_TEST(w.pool->unload("a", {}, me).ok());
    // Until the region is lent, its bytes are still those of the set.
    for (auto& region : former)
      BOOST_TEST(w.generation(region) == region.generation);
    auto next = reserve(w, set_of("b", 2));
    for (auto& region : former)
      BOOST_TEST(w.generation(region) > region.generation);
    for (auto& region : next->regions())
      BOOST_TEST(region.generation == w.generation(region));
  }
}

BOOST_AUTO_TEST_CASE(the_same_source_is_preloaded_once) {
  pool_world w;
  auto set = preload(w, set_of("a", 2));
  auto again = w.pool->reserve(set_of("a", 2), "user 1001");
  BOOST_REQUIRE(again);
  BOOST_TEST(!again->filling);
  BOOST_TEST(again->existing == set);
  BOOST_TEST(w.pool->stats().used_bytes == 2 * mib);
  auto changed = why(w, set_of("a", 2, 2));
  BOOST_TEST((changed.code() == errc::already_exists));
  BOOST_TEST(says(changed, "other files"), changed.to_string());
  auto other = why(w, set_of("a", 3));
  BOOST_TEST((other.code() == errc::already_exists));
  BOOST_TEST(says(other, "2000 samples"), other.to_string());
}

BOOST_AUTO_TEST_CASE(a_name_that_is_being_filled_is_busy) {
  pool_world w;
  auto filling = reserve(w, set_of("a", 1), "user 1001");
  for (auto source : {1, 2}) {
    auto busy = why(w, set_of("a", 1, static_cast<std::uint64_t>(source)));
    BOOST_TEST((busy.code() == errc::busy));
    BOOST_TEST(says(busy, "user 1001"), busy.to_string());
  }
  BOOST_TEST((w.pool->unload("a", {}, "user 1001").code() == errc::busy));
  BOOST_TEST(w.pool->publish(filling).has_value());
}

BOOST_AUTO_TEST_CASE(a_filling_that_is_unloaded_by_its_id_is_published_no_more) {
  pool_world w{2};
  auto filling = reserve(w, set_of("a", 2), "user 1001");
  auto id = filling->info().id;
  BOOST_TEST((w.pool->unload("a", id, "user 1002").code() == errc::permission_denied));
  BOOST_TEST(w.pool->unload("a", id, "user 1001").ok());
  BOOST_TEST((w.pool->unload("a", id, "user 1001").code() == errc::not_found));
  BOOST_TEST((w.pool->publish(filling).error().code() == errc::invalid_argument));
  BOOST_TEST(w.pool->stats().used_bytes == 2 * mib); // someone may still write there
  filling.reset();
  BOOST_TEST(w.pool->stats().used_bytes == 0u);
  BOOST_TEST(w.pool->stats().unloads == 0u);
  preload(w, set_of("a", 2));
}

BOOST_AUTO_TEST_CASE(the_owner_root_and_the_service_may_unload) {
  pool_world w;
  for (auto& who : std::vector<std::string>{"user 4711", "user 0", process_owner()}) {
    preload(w, set_of("a", 1), "user 4711");
    for (auto stranger : {"user 4712", "user 47", "10.0.0.1", ""}) {
      auto denied = w.pool->unload("a", {}, stranger);
      BOOST_TEST((denied.code() == errc::permission_denied));
      BOOST_TEST(says(denied, "user 4711"), denied.to_string());
    }
    BOOST_TEST(w.pool->find("a").has_value());
    BOOST_TEST(w.pool->unload("a", {}, who).ok(), who);
  }
  BOOST_TEST((w.pool->unload("a", {}, "user 0").code() == errc::not_found));
}

BOOST_AUTO_TEST_CASE(an_unload_of_a_former_life_leaves_the_set) {
  pool_world w;
  auto former = preload(w, set_of("a", 1))->info().id;
  BOOST_TEST(w.pool->unload("a", former, me).ok());
  auto later = preload(w, set_of("a", 1))->info().id;
  BOOST_TEST((former != later));
  BOOST_TEST((w.pool->unload("a", former, me).code() == errc::not_found));
  BOOST_TEST(w.pool->find("a").has_value());
  BOOST_TEST(w.pool->unload("a", later, me).ok());
}

BOOST_AUTO_TEST_CASE(a_description_without_sense_is_refused) {
  pool_world w;
  auto code = [&](auto change) {
    auto set = set_of("a", 2);
    change(set);
    return why(w, set).code();
  };
  BOOST_TEST((code([](auto& set) { set.fields.clear(); }) == errc::invalid_argument));
  BOOST_TEST((code([](auto& set) { set.name = ""; }) == errc::invalid_argument));
  BOOST_TEST((code([](auto& set) { set.samples = std::uint64_t{1} << 50; }) == errc::no_space));
  BOOST_TEST(w.pool->stats().used_bytes == 0u);
  // What it says about places does not count.
  auto set = set_of("a", 2);
  auto filling = reserve(w, set);
  set.region_bytes = set.size_bytes = set.fields[0].base = set.identity = 1;
  filling = nullptr;
  BOOST_TEST((validate(reserve(w, set)->info()).ok()));
}

BOOST_AUTO_TEST_CASE(a_set_without_samples_has_no_regions) {
  pool_world w{0};
  auto set = preload(w, set_of("none", 0));
  BOOST_TEST(set->regions().empty());
  BOOST_TEST(w.pool->find("none").has_value());
}

BOOST_AUTO_TEST_CASE(sets_are_listed_by_name_page_after_page) {
  pool_world w;
  for (auto name : {"b/2", "a", "b/1", "c", "b/3"})
    preload(w, set_of(name, 1));
  auto filling = reserve(w, set_of("b/0", 1));
  using names = std::vector<std::string>;
  auto list = [&](auto... how) { return names_of(w.pool->list(how...)); };
  BOOST_TEST((list("", "", 100) == names{"a", "b/1", "b/2", "b/3", "c"}));
  BOOST_TEST((list("b/", "", 2) == names{"b/1", "b/2"}));
  BOOST_TEST((list("b/", "b/2", 2) == names{"b/3"}));
  BOOST_TEST((list("b/", "a", 100) == names{"b/1", "b/2", "b/3"}));
  BOOST_TEST((list("b/", "c", 100) == names{}));
  BOOST_TEST((list("", "", 0) == names{}));
}

BOOST_AUTO_TEST_CASE(what_was_lent_outlives_the_pool) {
  pool_world w;
  auto set = preload(w, set_of("a", 1));
  auto filling = reserve(w, set_of("b", 1));
  auto region = set->regions()[0];
  auto being_filled = filling->regions()[0];
  w.pool.reset();
  std::memset(region.bytes.data(), 1, region.bytes.size());
  std::memset(being_filled.bytes.data(), 1, being_filled.bytes.size());
  BOOST_TEST(w.generation(region) == region.generation);
  BOOST_TEST(set->info().name == "a");
}

// Each thread writes its number into what it fills, and finds it there while it holds the set.
BOOST_AUTO_TEST_CASE(a_region_belongs_to_one_set_at_a_time) {
  pool_world w{4};
  std::atomic<int> wrong = 0, rounds = 0;
  auto work = [&](int number, const set_info& set) {
    for (auto round = 0; round < 200; ++round) {
      auto got = w.pool->reserve(set, me);
      if (!got)
        continue; // full
      for (auto& region : got->filling->regions())
        std::memset(region.bytes.data(), number, 64);
      auto stored = round % 3 == 0 ? nullptr : *w.pool->publish(got->filling);
      wrong += stored && w.pool->find(set.name).value_or(nullptr) != stored;
      wrong += stored && !w.pool->unload(set.name, stored->info().id, me).ok();
      for (auto& region : got->filling->regions()) {
        wrong += w.generation(region) != region.generation;
        for (auto byte : region.bytes.first(64))
          wrong += byte != static_cast<std::byte>(number);
      }
      ++rounds;
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t i = 1; i <= 4; ++i)
    threads.emplace_back(work, static_cast<int>(i), set_of(std::to_string(i), 1 + i % 2));
  for (auto& thread : threads)
    thread.join();
  BOOST_TEST(wrong == 0);
  BOOST_TEST(rounds > 0);
  BOOST_TEST(w.pool->stats().used_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(an_owner_has_no_more_than_the_quota) {
  pool_world w{8, {.quota_bytes = 4 * mib}};
  auto first = preload(w, set_of("a", 3));
  auto refused = why(w, set_of("b", 2));
  BOOST_TEST((refused.code() == errc::no_space));
  BOOST_TEST(says(refused, "user 1000 has 3145728 of 4194304 already"), refused.to_string());
  BOOST_TEST(says(refused, "data.quota"), refused.to_string());
  auto filling = reserve(w, set_of("b", 1)); // counts before it is published
  BOOST_TEST((why(w, set_of("c", 1)).code() == errc::no_space));
  preload(w, set_of("c", 4), "user 1001"); // the others have their own
  BOOST_TEST((why(w, set_of("d", 1), "user 1002").code() == errc::no_space)); // the pool is full
  filling.reset();
  reserve(w, set_of("b", 1));
  // What a reader holds counts, so that nobody gets more by unloading.
  BOOST_TEST(w.pool->unload("a", {}, me).ok());
  BOOST_TEST((why(w, set_of("d", 2)).code() == errc::no_space));
  first.reset();
  reserve(w, set_of("d", 4));
  BOOST_TEST((why(w, set_of("e", 5)).code() == errc::no_space));
}

BOOST_AUTO_TEST_CASE(the_least_recently_used_sets_make_room) {
  pool_world w{6, {.when_full = room_policy::evict}};
  for (auto* name : {"a", "b", "c"})
    preload(w, set_of(name, 2));
  BOOST_TEST(w.pool->find("a").has_value());
  auto got = w.pool->reserve(set_of("d", 1), "user 1001");
  BOOST_REQUIRE(got);
  BOOST_TEST(got->evicted == std::vector<std::string>{"b"}, boost::test_tools::per_element());
  BOOST_TEST((w.pool->find("b").error().code() == errc::not_found));
  BOOST_TEST(w.pool->stats().evictions == 1u);
  BOOST_TEST(w.pool->stats().unloads == 0u);
  BOOST_TEST(w.pool->stats().used_bytes == 5 * mib);
  // The end of a use counts as the use.
  BOOST_TEST(!w.pool->end_use("c", w.pool->find("c").value()->info().id));
  auto next = w.pool->reserve(set_of("e", 2), me);
  BOOST_REQUIRE(next);
  BOOST_TEST(next->evicted == std::vector<std::string>{"a"}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(sets_that_somebody_has_make_no_room) {
  pool_world w{6, {.when_full = room_policy::evict}};
  auto held = preload(w, set_of("a", 2));
  preload(w, set_of("b", 2));
  auto filling = reserve(w, set_of("c", 1));
  auto refused = why(w, set_of("d", 4)); // 3 could be had
  BOOST_TEST((refused.code() == errc::no_space));
  BOOST_TEST(w.pool->find("b").has_value()); // none has gone in vain
  BOOST_TEST(w.pool->stats().evictions == 0u);
  BOOST_TEST((why(w, set_of("d", 7)).code() == errc::no_space));
  held.reset();
  auto got = w.pool->reserve(set_of("d", 4), me);
  BOOST_REQUIRE(got);
  std::vector<std::string> both{"a", "b"};
  BOOST_TEST(got->evicted == both, boost::test_tools::per_element());
  BOOST_TEST(w.pool->publish(filling).has_value());
}

BOOST_AUTO_TEST_CASE(for_a_quota_the_sets_of_the_owner_make_room) {
  pool_world w{8, {.quota_bytes = 3 * mib, .when_full = room_policy::evict}};
  preload(w, set_of("others", 2), "user 1001");
  preload(w, set_of("a", 1));
  preload(w, set_of("b", 2));
  auto got = w.pool->reserve(set_of("c", 2), me);
  BOOST_REQUIRE(got);
  std::vector<std::string> own{"a", "b"};
  BOOST_TEST(got->evicted == own, boost::test_tools::per_element());
  BOOST_TEST(w.pool->find("others").has_value());
  BOOST_TEST((why(w, set_of("d", 4)).code() == errc::no_space)); // more than the quota
  BOOST_TEST(w.pool->publish(got->filling).has_value());
}

BOOST_AUTO_TEST_CASE(a_name_is_made_free_as_well) {
  pool_world w{8, {.sets_max = 2, .when_full = room_policy::evict}};
  preload(w, set_of("a", 1));
  preload(w, set_of("b", 1));
  auto got = w.pool->reserve(set_of("c", 1), me);
  BOOST_REQUIRE(got);
  BOOST_TEST(got->evicted == std::vector<std::string>{"a"}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_set_that_is_kept_while_it_is_used_goes_after_its_last_use) {
  pool_world w;
  auto wanted = set_of("a", 1);
  wanted.while_used = true;
  auto id = preload(w, wanted)->info().id;
  BOOST_TEST(w.pool->list({}, {}, 1).at(0).while_used);
  BOOST_TEST(!w.pool->end_use("a", random_id<set_id>()));
  BOOST_TEST(!w.pool->end_use("b", id));
  BOOST_TEST(w.pool->end_use("a", id));
  BOOST_TEST(w.pool->stats().sets == 0u);
  BOOST_TEST(w.pool->stats().used_bytes == 0u);
  // Who preloads it to stay makes it stay, and nobody makes it go again.
  id = preload(w, wanted)->info().id;
  BOOST_TEST(w.pool->reserve(set_of("a", 1), "user 1001").has_value());
  BOOST_TEST(w.pool->reserve(wanted, me).has_value());
  BOOST_TEST(!w.pool->list({}, {}, 1).at(0).while_used);
  BOOST_TEST(!w.pool->end_use("a", id));
  BOOST_TEST(w.pool->find("a").has_value());
}

// Part `index` of a set on two nodes.
static set_info part_of_set(const std::string& name, const set_id& whole, std::uint32_t index) {
  auto out = set_of(name, 1);
  out.division = {whole, index, {"n0", "n1"}, 2 * out.samples, {{2'000'000, 2'000'000}}};
  BOOST_REQUIRE(place_fields(out).ok());
  return out;
}

BOOST_AUTO_TEST_CASE(parts_are_found_by_the_id_of_the_whole) {
  pool_world w;
  auto whole = random_id<set_id>(), other = random_id<set_id>();
  auto info = preload(w, part_of_set("a", whole, 1))->info();
  preload(w, part_of_set("b", whole, 0));
  BOOST_TEST(w.pool->find("a", whole).has_value());
  BOOST_TEST(w.pool->find("a", info.id).has_value());
  BOOST_TEST((w.pool->find("a", other).error().code() == errc::not_found));
  // The first part stands for the set.
  BOOST_TEST(w.pool->list("", "", 10).size() == 1u);
  BOOST_TEST(w.pool->list("", "", 10, true).size() == 2u);
  // The same part is there; another part, one of another whole, and a whole set are not.
  BOOST_TEST((w.pool->reserve(part_of_set("a", whole, 1), me).value().existing != nullptr));
  auto refuses = [&](const set_info& wanted) {
    auto got = w.pool->reserve(wanted, me);
    return !got && got.error().code() == errc::already_exists;
  };
  BOOST_TEST(refuses(part_of_set("a", whole, 0)));
  BOOST_TEST(refuses(part_of_set("a", other, 1)));
  BOOST_TEST(refuses(set_of("a", 1)));
  BOOST_TEST(refuses(part_of_set("b", whole, 1)));
  // Whoever preloads a set again gets the one that is there, however it is divided.
  BOOST_TEST((w.pool->reserve(part_of_set("b", other, 0), me).value().existing != nullptr));
  auto filling = reserve(w, part_of_set("c", whole, 1));
  BOOST_TEST((w.pool->unload("c", other, me).code() == errc::not_found));
  BOOST_TEST(w.pool->unload("c", whole, me).ok());
  BOOST_TEST(!w.pool->publish(filling).has_value());
  BOOST_TEST(w.pool->unload("a", whole, me).ok());
  auto lying = part_of_set("d", whole, 1);
  lying.division.index = 2;
  BOOST_TEST((w.pool->reserve(lying, me).error().code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_SUITE_END()
