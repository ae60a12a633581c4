// What a pool promises as a store of checkpoints, on every medium a test machine has.
#include "pmem_world.hpp"

#include <millrace/storage/pmem/model_map.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/memory_bound.hpp>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <future>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;
using namespace std::chrono_literals;

// Named, for the lambdas of data tests carry these types.
namespace pmem_checkpoint_tests {

const auto ways = boost::unit_test::data::make(pool_ways());
const std::vector<std::uint64_t> some_tensors = {3 * mib + 100, 5, 0, 700 * kib, 64, 256 * kib};

} // namespace pmem_checkpoint_tests

using namespace pmem_checkpoint_tests;

BOOST_AUTO_TEST_SUITE(pmem_checkpoints)

BOOST_DATA_TEST_CASE(a_saved_step_is_read_back_byte_for_byte_and_after_reopening, ways, way) {
  world w{way};
  auto shard = shard_of("a", some_tensors);
  w.enroll_or_fail(shard);
  w.save_or_fail(shard, 7);
  BOOST_TEST(w.holds(shard, 7));
  w.reopen();
  BOOST_TEST(w.holds(shard, 7));
  BOOST_TEST(w.holds(shard));
  auto described =
    await<shard_spec>([&](auto done) { w.store->describe("a", 0, std::move(done)); });
  BOOST_REQUIRE(described);
  BOOST_TEST((*described == shard));
}

BOOST_DATA_TEST_CASE(what_describes_shards_is_counted_and_bounded, ways, way) {
  world w{way};
  auto described = [&] { return w.owner->models()->stats().descriptions_bytes; };
  // Empty tensors take little of the pool, and their descriptions take memory.
  auto empty_tensors = [](const std::string& name) {
    std::vector<std::uint64_t> tensor_bytes(10'000, 0);
    tensor_bytes[0] = 64;
    return shard_of(name, tensor_bytes);
  };
  BOOST_TEST(described() == 0u);
  auto first = empty_tensors("a");
  w.enroll_or_fail(first);
  auto of_one = described();
  BOOST_TEST(of_one > 10'000u * 2 * sizeof(tensor_desc));
  w.store->leave("a", 0, false);
  w.enroll_or_fail(first); // again
  BOOST_TEST(described() == of_one);
  w.options.descriptions_max_bytes = 3 * of_one + of_one / 2;
  w.reopen();
  BOOST_TEST(described() == of_one);
  int enrolled = 1;
  status refused;
  for (std::string name : {"b", "c", "d", "e"}) {
    auto outcome = enroll(*w.store, empty_tensors(name));
    enrolled += outcome.has_value();
    if (!outcome)
      refused = outcome.error();
  }
  BOOST_TEST(enrolled == 3);
  BOOST_TEST((refused.code() == errc::no_space));
  BOOST_TEST(refused.detail().find("descriptions_max") != std::string::npos, refused.to_string());
  BOOST_TEST(described() == 3 * of_one);
  // A job that is known goes on, whatever the bound.
  w.options.descriptions_max_bytes = 1;
  w.reopen();
  BOOST_TEST(described() == 3 * of_one);
  w.enroll_or_fail(first);
  w.save_or_fail(first, 1);
  w.enroll_or_fail(empty_tensors("b"));
  BOOST_TEST(described() == 3 * of_one);
}

// The repository gives way where it may.
BOOST_DATA_TEST_CASE(models_are_evicted_for_the_description_of_a_shard, ways, way) {
  world w{way};
  w.options.models_full = when_full::evict;
  w.options.descriptions_max_bytes = 512 * kib;
  w.reopen();
  auto models = w.owner->models();
  for (int i = 0; i < 400; ++i)
    BOOST_REQUIRE(store(*models, spec_of("m" + std::to_string(i), {10, 10}), 1));
  BOOST_TEST(models->stats().evictions > 0u);
  w.enroll_or_fail(shard_of("a", std::vector<std::uint64_t>(600, 8)));
  BOOST_TEST(models->stats().descriptions_bytes <= 512 * kib);
}

BOOST_DATA_TEST_CASE(
  two_slots_alternate_and_the_last_step_stays_while_the_next_is_filled, ways, way) {
  world w{way};
  auto shard = shard_of("a", some_tensors);
  w.enroll_or_fail(shard);
  for (std::uint64_t step = 1; step <= 5; ++step) {
    auto pending = begin(*w.store, "a", 0, step);
    BOOST_REQUIRE_MESSAGE(pending, why(pending));
    if (step > 1) {
      BOOST_TEST(w.holds(shard));
      BOOST_TEST(*newest_step(*w.store, "a", 0) == step - 1);
    }
    BOOST_REQUIRE(finish(**pending, shard, step));
  }
  BOOST_TEST(w.holds(shard, 5));
  BOOST_TEST(w.holds(shard, 4));
  BOOST_TEST((w.opening(shard, 3) == errc::not_found));
}

BOOST_DATA_TEST_CASE(an_unfinished_save_leaves_the_step_before, ways, way) {
  world w{way};
  auto shard = shard_of("a", some_tensors);
  w.enroll_or_fail(shard);
  w.save_or_fail(shard, 1);
  w.save_or_fail(shard, 2);
  {
    auto pending = begin(*w.store, "a", 0, 3);
    BOOST_REQUIRE(pending);
    BOOST_REQUIRE(fill_windows(**pending, 99).ok());
  }
  BOOST_TEST((w.slots(shard)[0].state == slot_state::empty));
  w.reopen();
  BOOST_TEST(w.holds(shard, 2));
  BOOST_TEST((w.opening(shard, 1) == errc::not_found));
  BOOST_TEST((w.opening(shard, 3) == errc::not_found));
}

BOOST_DATA_TEST_CASE(a_step_is_complete_when_all_ranks_have_it, ways, way) {
  world w{way};
  auto zero = shard_of("a", {mib}, 0, 2), one = shard_of("a", {mib + 8}, 1, 2);
  w.enroll_or_fail(zero);
  w.save_or_fail(zero, 1);
  BOOST_TEST((w.opening(zero) == errc::not_found));
  BOOST_TEST(w.holds(zero, 1));
  w.enroll_or_fail(one);
  w.save_or_fail(one, 1);
  BOOST_TEST(*newest_step(*w.store, "a", 0) == 1u);
  // Rank 0 is ahead; what both have stays.
  for (std::uint64_t step = 2; step <= 4; ++step) {
    w.save_or_fail(zero, step);
    BOOST_TEST(*newest_step(*w.store, "a", 0) == step - 1);
    BOOST_TEST(w.holds(zero, step - 1));
    BOOST_TEST(w.holds(zero, step));
    w.save_or_fail(one, step);
  }
  w.reopen();
  BOOST_TEST(*newest_step(*w.store, "a", 1) == 4u);
  BOOST_TEST((summary_of(*w.store, "a").complete_steps == std::vector<std::uint64_t>{3, 4}));
}

BOOST_DATA_TEST_CASE(newest_means_saved_last_whatever_the_number, ways, way) {
  world w{way};
  auto shard = w.saved({100, 101, 50});
  w.reopen();
  BOOST_TEST(*newest_step(*w.store, "a", 0) == 50u);
  BOOST_TEST(w.holds(shard, 101));
  w.enroll_or_fail(shard);
  w.save_or_fail(shard, 51);
  BOOST_TEST(*newest_step(*w.store, "a", 0) == 51u);
  BOOST_TEST(w.holds(shard, 50));
}

BOOST_AUTO_TEST_CASE(a_clock_that_is_set_back_makes_no_save_older) {
  pmem::model m{"a"};
  BOOST_TEST(pmem::time_of_save(m, 100) == 100u);
  BOOST_TEST(pmem::time_of_save(m, 40) == 101u);
  BOOST_TEST(pmem::time_of_save(m, 40) == 102u);
  BOOST_TEST(pmem::time_of_save(m, 500) == 500u);
}

BOOST_DATA_TEST_CASE(a_slot_with_the_same_step_is_filled_before_an_older_one, ways, way) {
  world w{way};
  auto shard = shard_of("a", {mib}, 0, 1, 3);
  w.enroll_or_fail(shard);
  for (auto step : {1, 2, 3})
    w.save_or_fail(shard, step);
  w.save_or_fail(shard, 2);
  BOOST_TEST(w.holds(shard, 1));
  BOOST_TEST(w.holds(shard, 2));
  BOOST_TEST(w.holds(shard, 3));
  BOOST_TEST(*newest_step(*w.store, "a", 0) == 2u);
}

BOOST_DATA_TEST_CASE(whoever_waits_for_a_slot_hears_when_its_reader_lets_go, ways, way) {
  world w{way};
  auto shard = w.saved({1, 2});
  auto reader = open_version(*w.store, "a", 0, 1);
  BOOST_REQUIRE(reader);
  std::promise<void> replaced, freed;
  auto pending = begin(*w.store, "a", 0, 3, [&] { replaced.set_value(); });
  BOOST_REQUIRE(!pending);
  BOOST_TEST((pending.error().code() == errc::busy));
  BOOST_REQUIRE(!begin(*w.store, "a", 0, 3, [&] { freed.set_value(); }));
  reader = fail(errc::cancelled, "read");
  BOOST_TEST((freed.get_future().wait_for(20s) == std::future_status::ready));
  BOOST_TEST((replaced.get_future().wait_for(0s) == std::future_status::timeout));
  w.save_or_fail(shard, 3);
}

BOOST_DATA_TEST_CASE(a_slot_being_read_is_not_filled, ways, way) {
  world w{way};
  auto shard = w.saved({1, 2});
  auto reader = open_version(*w.store, "a", 0, 1);
  BOOST_REQUIRE(reader);
  auto refused = begin(*w.store, "a", 0, 3);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::busy));
  BOOST_TEST((refused.error().detail().find("being read") != std::string::npos));
  reader = nullptr;
  w.save_or_fail(shard, 3);
  BOOST_TEST(w.holds(shard, 3));
}

BOOST_AUTO_TEST_CASE(a_slot_whose_window_a_lost_peer_may_still_hold_is_not_filled) {
  world w{in_place_way()};
  auto shard = w.saved({1});
  std::shared_ptr<void> hold;
  {
    auto pending = begin(*w.store, "a", 0, 2);
    BOOST_REQUIRE(pending);
    auto lent = acquire(**pending, 0);
    BOOST_REQUIRE(lent);
    hold = lent->hold;
  }
  auto refused = begin(*w.store, "a", 0, 3);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::busy));
  hold.reset();
  w.save_or_fail(shard, 3);
  BOOST_TEST(w.holds(shard, 3));
}

BOOST_DATA_TEST_CASE(one_job_at_a_time_is_attached_to_a_shard, ways, way) {
  world w{way};
  auto shard = shard_of("a", {mib});
  w.enroll_or_fail(shard);
  auto second = enroll(*w.store, shard);
  BOOST_REQUIRE(!second);
  BOOST_TEST((second.error().code() == errc::busy));
  w.store->leave("a", 0, false);
  auto resumed = enroll(*w.store, shard);
  BOOST_REQUIRE(resumed);
  BOOST_TEST(resumed->resumed);
  auto stranger = begin(*w.store, "b", 0, 1);
  BOOST_REQUIRE(!stranger);
  BOOST_TEST((stranger.error().code() == errc::not_found));
}

BOOST_DATA_TEST_CASE(another_layout_or_world_under_the_name_is_refused, ways, way) {
  world w{way};
  w.enroll_or_fail(shard_of("a", {mib, 10}));
  w.store->leave("a", 0, false);
  auto other = enroll(*w.store, shard_of("a", {mib, 11}));
  BOOST_REQUIRE(!other);
  BOOST_TEST((other.error().code() == errc::invalid_argument));
  BOOST_TEST((other.error().detail().find("tensor 1 is t1") != std::string::npos));
  auto wider = enroll(*w.store, shard_of("a", {mib, 10}, 0, 2));
  BOOST_REQUIRE(!wider);
  BOOST_TEST((wider.error().code() == errc::invalid_argument));
}

BOOST_DATA_TEST_CASE(registration_reserves_all_slots_or_nothing, ways, way) {
  world w{way};
  auto used = w.store->stats().used_bytes;
  auto free = w.owner->info().free_bytes;
  for (auto i = 0; i < 20; ++i) {
    auto refused = enroll(*w.store, shard_of("a", {24 * mib}, 0, 1, 3));
    BOOST_REQUIRE(!refused);
    BOOST_TEST((refused.error().code() == errc::no_space));
  }
  BOOST_TEST(w.store->stats().used_bytes == used);
  // libpmemobj keeps a chunk or two at hand for small objects.
  BOOST_TEST(w.owner->info().free_bytes + mib > free);
  BOOST_TEST(list_all(*w.store).empty());
  w.enroll_or_fail(shard_of("a", {24 * mib}));
  w.reopen();
  BOOST_TEST(list_all(*w.store).size() == 1u);
}

BOOST_DATA_TEST_CASE(a_shard_larger_than_the_pool_costs_neither_memory_nor_versions, ways, way) {
  world w{way};
  w.close();
  w.options.low_space = when_low_space::reclaim;
  w.open();
  auto old = shard_of("old", {mib});
  w.enroll_or_fail(old);
  w.save_or_fail(old, 1);
  w.save_or_fail(old, 2);
  w.store->leave("old", 0, true);
  {
    memory_bound bound{256 * mib};
    auto refused = enroll(*w.store, shard_of("large", {16 * mib * mib}));
    BOOST_REQUIRE(!refused);
    BOOST_TEST((refused.error().code() == errc::no_space));
    BOOST_TEST(refused.error().detail().find(std::to_string(32 * mib * mib)) != std::string::npos);
  }
  BOOST_TEST(list_all(*w.store).size() == 1u);
  BOOST_TEST(w.holds(old, 1));
  BOOST_TEST(w.holds(old, 2));
}

BOOST_DATA_TEST_CASE(keep_grows_and_shrinks_with_a_new_registration, ways, way) {
  world w{way};
  auto shard = w.saved({1, 2});
  w.store->leave("a", 0, false);
  shard.keep = 4;
  w.enroll_or_fail(shard);
  w.save_or_fail(shard, 3);
  w.save_or_fail(shard, 4);
  for (auto step : {1, 2, 3, 4})
    BOOST_TEST(w.holds(shard, step));
  w.reopen();
  BOOST_TEST(w.slots(shard).size() == 4u);
  shard.keep = 2;
  w.enroll_or_fail(shard);
  BOOST_TEST(w.slots(shard).size() == 2u);
  w.reopen();
  BOOST_TEST(w.slots(shard).size() == 2u);
  BOOST_TEST(w.holds(shard, 3));
  BOOST_TEST(w.holds(shard, 4));
  BOOST_TEST((w.opening(shard, 1) == errc::not_found));
}

BOOST_DATA_TEST_CASE(erasing_waits_for_jobs_but_not_for_readers, ways, way) {
  world w{way};
  auto shard = shard_of("a", {2 * mib});
  w.enroll_or_fail(shard);
  w.save_or_fail(shard, 1);
  BOOST_TEST((erase(*w.store, "a").code() == errc::busy));
  w.store->leave("a", 0, false);
  auto reader = open_version(*w.store, "a", 0, 1);
  BOOST_REQUIRE(reader);
  BOOST_TEST(erase(*w.store, "a").ok());
  BOOST_TEST((w.opening(shard, 1) == errc::not_found));
  BOOST_TEST((erase(*w.store, "a").code() == errc::not_found));
  BOOST_TEST(check_ranges(**reader, everything(shard.tensors), content_seed("a", 0, 1)).ok());
  reader = nullptr;
  w.reopen();
  BOOST_TEST(w.store->stats().used_bytes == 0u);
  BOOST_TEST(list_all(*w.store).empty());
  w.enroll_or_fail(shard);
}

// On disks a thread of the pool frees what was erased.
BOOST_DATA_TEST_CASE(
  a_job_begins_anew_as_soon_as_the_last_reader_of_what_was_erased_ends, ways, way) {
  world w{way};
  auto shard = shard_of("a", {kib});
  for (auto times = 0; times < 20; ++times) {
    w.enroll_or_fail(shard);
    w.save_or_fail(shard, 1);
    w.store->leave("a", 0, false);
    auto reader = open_version(*w.store, "a", 0, 1);
    BOOST_REQUIRE(reader);
    BOOST_REQUIRE(erase(*w.store, "a").ok());
    auto early = enroll(*w.store, shard);
    BOOST_REQUIRE(!early);
    BOOST_TEST((early.error().code() == errc::busy));
    reader = nullptr;
    w.enroll_or_fail(shard);
    w.store->leave("a", 0, false);
  }
  BOOST_TEST(erase(*w.store, "a").ok());
  w.reopen();
  BOOST_TEST(w.store->stats().used_bytes == 0u);
}

BOOST_DATA_TEST_CASE(one_step_can_be_erased, ways, way) {
  world w{way};
  auto shard = w.saved({1, 2});
  w.store->leave("a", 0, false);
  BOOST_TEST((erase(*w.store, "a", 9).code() == errc::not_found));
  BOOST_TEST(erase(*w.store, "a", 2).ok());
  w.reopen();
  BOOST_TEST(*newest_step(*w.store, "a", 0) == 1u);
  BOOST_TEST((w.opening(shard, 2) == errc::not_found));
  w.enroll_or_fail(shard);
  w.save_or_fail(shard, 3);
  BOOST_TEST(w.holds(shard, 1));
}

BOOST_DATA_TEST_CASE(low_space_reclaims_what_is_missed_least_and_never_the_newest, ways, way) {
  world w{way};
  w.close();
  w.options.low_space = when_low_space::reclaim;
  w.open();
  auto done = shard_of("done", {8 * mib}), dead = shard_of("dead", {4 * mib}, 0, 1, 3);
  for (auto* shard : {&done, &dead}) {
    w.enroll_or_fail(*shard);
    for (std::uint64_t step = 1; step <= shard->keep; ++step)
      w.save_or_fail(*shard, step);
  }
  w.store->leave("done", 0, true);
  w.store->leave("dead", 0, false);
  auto live = shard_of("live", {17 * mib});
  w.enroll_or_fail(live);
  BOOST_TEST((w.opening(done, 1) == errc::not_found));
  for (auto step : {1, 2, 3})
    BOOST_TEST(w.holds(dead, step));
  BOOST_TEST(w.holds(done, 2));
  auto more = shard_of("more", {2 * mib});
  w.enroll_or_fail(more);
  BOOST_TEST((w.opening(dead, 1) == errc::not_found));
  auto refused = enroll(*w.store, shard_of("too much", {9 * mib}));
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::no_space));
  // Nobody knows whether the job comes back: two versions of it stay.
  w.reopen();
  BOOST_TEST(w.holds(dead, 2));
  BOOST_TEST(w.holds(dead, 3));
  BOOST_TEST(w.holds(done, 2));
}

BOOST_DATA_TEST_CASE(repack_frees_what_finished_and_dead_jobs_left, ways, way) {
  world w{way};
  auto done = shard_of("done", {4 * mib}), dead = shard_of("dead", {4 * mib});
  auto live = shard_of("live", {4 * mib});
  for (auto* shard : {&done, &dead, &live}) {
    w.enroll_or_fail(*shard);
    w.save_or_fail(*shard, 1);
    w.save_or_fail(*shard, 2);
  }
  { BOOST_REQUIRE(begin(*w.store, "dead", 0, 3)); }
  w.store->leave("done", 0, true);
  w.reopen();
  w.enroll_or_fail(live);
  BOOST_TEST((w.slots(dead)[0].state == slot_state::active));
  auto report = repack(*w.store);
  BOOST_REQUIRE_MESSAGE(report, why(report));
  BOOST_TEST(report->versions_freed == 1u);
  BOOST_TEST(report->remains_freed == 1u);
  BOOST_TEST(report->freed_bytes >= 8 * mib);
  BOOST_TEST(report->largest_free_bytes_after > report->largest_free_bytes_before);
  w.reopen();
  for (auto* shard : {&done, &dead, &live})
    BOOST_TEST(w.holds(*shard, 2));
  BOOST_TEST(w.holds(live, 1));
  // The freed slots come back with the job.
  w.enroll_or_fail(dead);
  w.save_or_fail(dead, 3);
  BOOST_TEST(w.holds(dead, 2));
  BOOST_TEST(w.holds(dead, 3));
}

BOOST_DATA_TEST_CASE(repack_joins_free_space_so_that_a_large_shard_fits_in_one_run, ways, way) {
  world w{way};
  std::vector<shard_spec> shards;
  for (auto i = 0; i < 6; ++i) {
    shards.push_back(shard_of("m" + std::to_string(i), {4 * mib}));
    w.enroll_or_fail(shards.back());
    w.save_or_fail(shards.back(), 1);
    w.store->leave(shards.back().model, 0, false);
  }
  for (auto i : {0, 2, 4})
    BOOST_REQUIRE(erase(*w.store, "m" + std::to_string(i)).ok());
  auto before = w.owner->info();
  BOOST_TEST(before.largest_free_bytes < before.free_bytes);
  auto report = repack(*w.store);
  BOOST_REQUIRE_MESSAGE(report, why(report));
  BOOST_TEST(report->moved_bytes > 0u);
  auto after = w.owner->info();
  BOOST_TEST(after.largest_free_bytes > before.largest_free_bytes);
  for (auto i : {1, 3, 5})
    BOOST_TEST(w.holds(shards[i], 1));
  w.reopen();
  for (auto i : {1, 3, 5})
    BOOST_TEST(w.holds(shards[i], 1));
  // Blocks of small objects that are empty by now are given back when a pool opens.
  BOOST_TEST(w.owner->info().largest_free_bytes >= after.largest_free_bytes);
}

BOOST_DATA_TEST_CASE(repack_leaves_what_is_being_read, ways, way) {
  world w{way};
  auto shard = shard_of("a", {4 * mib});
  w.enroll_or_fail(shard);
  w.save_or_fail(shard, 1);
  w.save_or_fail(shard, 2);
  w.store->leave("a", 0, true);
  auto reader = open_version(*w.store, "a", 0, 1);
  BOOST_REQUIRE(reader);
  auto report = repack(*w.store);
  BOOST_REQUIRE(report);
  BOOST_TEST(report->skipped > 0u);
  BOOST_TEST(check_ranges(**reader, everything(shard.tensors), content_seed("a", 0, 1)).ok());
}

BOOST_DATA_TEST_CASE(a_shard_is_spread_over_what_is_free, ways, way) {
  world w{way};
  for (auto i = 0; i < 7; ++i) {
    w.enroll_or_fail(shard_of("m" + std::to_string(i), {3 * mib}));
    w.store->leave("m" + std::to_string(i), 0, false);
  }
  for (auto i : {0, 2, 4, 6})
    BOOST_REQUIRE(erase(*w.store, "m" + std::to_string(i)).ok());
  auto info = w.owner->info();
  auto large = shard_of("large", {info.largest_free_bytes / 2 + 3 * mib, 100, 200 * kib});
  BOOST_REQUIRE(2 * size_bytes(large.tensors) < info.free_bytes);
  w.enroll_or_fail(large);
  for (auto step : {1, 2, 3})
    w.save_or_fail(large, step);
  w.reopen();
  BOOST_TEST(w.holds(large, 2));
  BOOST_TEST(w.holds(large, 3));
}

BOOST_DATA_TEST_CASE(a_full_pool_finishes_every_save_and_can_be_emptied, ways, way) {
  world w{way, 32 * mib};
  std::vector<shard_spec> shards;
  for (auto size = 4 * mib; size >= kib; size /= 2)
    for (;;) {
      auto shard = shard_of("m" + std::to_string(shards.size()), {size});
      if (shards.size() > 400 || !enroll(*w.store, shard))
        break;
      shards.push_back(shard);
    }
  for (auto& shard : shards)
    for (auto step : {1, 2, 3})
      w.save_or_fail(shard, step);
  w.reopen();
  for (auto& shard : shards)
    BOOST_REQUIRE(w.holds(shard));
  for (auto& shard : shards) {
    auto gone = erase(*w.store, shard.model);
    BOOST_REQUIRE_MESSAGE(gone.ok(), gone.to_string());
  }
  BOOST_TEST(list_all(*w.store).empty());
}

BOOST_DATA_TEST_CASE(a_shard_without_bytes_has_steps_too, ways, way) {
  world w{way};
  auto shard = shard_of("a", {0, 0});
  w.enroll_or_fail(shard);
  w.save_or_fail(shard, 1);
  w.reopen();
  BOOST_TEST(w.holds(shard, 1));
}

BOOST_AUTO_TEST_CASE(bytes_written_back_by_the_mover_need_no_flush) {
  world w{in_place_way()};
  BOOST_TEST(w.store->capabilities().cpu_flush);
  BOOST_TEST(w.store->capabilities().in_place);
  auto shard = shard_of("a", some_tensors);
  w.enroll_or_fail(shard);
  auto pending = begin(*w.store, "a", 0, 1);
  BOOST_REQUIRE(pending);
  (*pending)->written_back();
  BOOST_REQUIRE(finish(**pending, shard, 1));
  BOOST_TEST(w.holds(shard, 1));
}

BOOST_AUTO_TEST_CASE(a_closed_store_answers_unavailable) {
  world w{in_place_way()};
  BOOST_TEST(w.store->close(1000).ok());
  auto refused = enroll(*w.store, shard_of("a", {mib}));
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::unavailable));
  w.store.reset();
}

BOOST_AUTO_TEST_SUITE_END()
