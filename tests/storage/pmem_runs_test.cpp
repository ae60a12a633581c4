// Tests which versions belong together: lives of ranks, runs of jobs, and what of a step counts
// when one of them begins anew.
#include "pmem_world.hpp"

#include <millrace/tests/support/bucket_driving.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;

// Named, for the lambdas of data tests carry these types.
namespace pmem_runs_tests {

const auto ways = boost::unit_test::data::make(pool_ways());
const auto reopenings = boost::unit_test::data::make({false, true});
const auto orders = boost::unit_test::data::make({0, 1}); // which rank comes first

/// Two ranks of one job: who registers as what, and what that makes of their steps.
struct two_ranks : world {
  explicit two_ranks(pool_way way) : world(way) { all_register(1); }

  shard_spec ranks[2] = {shard_of("a", {mib}, 0, 2), shard_of("a", {mib + 8}, 1, 2)};
  std::uint64_t runs[2] = {}; // of their last saves

  void all_register(std::uint64_t life) {
    for (auto rank : {0, 1})
      registers(rank, life);
  }
  void registers(int rank, std::uint64_t life) {
    store->leave("a", ranks[rank].rank, false);
    ranks[rank].life = 10 * life + ranks[rank].rank;
    enroll_or_fail(ranks[rank]);
  }
  /// Whether that makes the step complete.
  bool saves(int rank, std::uint64_t step, bool went_back = false) {
    return saves_from(went_back ? runs[rank] + 1 : 0, rank, step);
  }
  bool saves_from(std::uint64_t run_min, int rank, std::uint64_t step) {
    auto pending = begin(*store, save_spec{"a", ranks[rank].rank, step, run_min});
    BOOST_REQUIRE_MESSAGE(pending, why(pending));
    runs[rank] = (*pending)->run();
    BOOST_REQUIRE(finish(**pending, ranks[rank], step));
    return (*pending)->complete();
  }
  bool all_save(std::uint64_t step) { return !saves(0, step) && saves(1, step); }
  std::uint64_t newest() { return newest_step(*store, "a", 0).value_or(0); }
};

} // namespace pmem_runs_tests

using namespace pmem_runs_tests;

BOOST_AUTO_TEST_SUITE(pmem_runs)

// A job goes back to step 10 and saves 20 anew, and dies when one rank has it: what is there of
// step 20 as a whole is what the first run saved.
BOOST_DATA_TEST_CASE(versions_of_two_runs_do_not_make_one_step, ways* reopenings, way, reopens) {
  world w{way};
  auto zero = shard_of("a", {mib}, 0, 2), one = shard_of("a", {mib + 8}, 1, 2);
  auto save_as = [&](const shard_spec& shard, std::uint64_t step, std::uint64_t content) {
    auto pending = begin(*w.store, "a", shard.rank, step);
    BOOST_REQUIRE_MESSAGE(pending, why(pending));
    BOOST_REQUIRE(finish(**pending, shard, content));
    return (*pending)->complete();
  };
  auto content_is = [&](const shard_spec& shard, std::uint64_t content) {
    for (auto step : {std::optional<std::uint64_t>{}, std::optional<std::uint64_t>{20}}) {
      auto opened = open_version(*w.store, "a", shard.rank, step);
      BOOST_REQUIRE_MESSAGE(opened, why(opened));
      BOOST_TEST((*opened)->record().version == 20u);
      auto seed = content_seed("a", shard.rank, content);
      BOOST_TEST(check_ranges(**opened, everything(shard.tensors), seed).ok());
    }
  };
  auto start_run = [&] {
    for (auto* shard : {&zero, &one})
      w.store->leave("a", shard->rank, false);
    if (reopens)
      w.reopen();
    for (auto* shard : {&zero, &one})
      w.enroll_or_fail(*shard);
  };
  start_run();
  for (std::uint64_t step : {10, 20})
    BOOST_TEST((!save_as(zero, step, step) && save_as(one, step, step)));
  start_run();
  BOOST_TEST(!save_as(zero, 20, 21));
  BOOST_REQUIRE(begin(*w.store, "a", 1, 20)); // and given up
  content_is(zero, 20);
  content_is(one, 20);
  start_run();
  content_is(zero, 20);
  content_is(one, 20);
  BOOST_TEST(!save_as(one, 20, 22));
  content_is(zero, 20);
  content_is(one, 20);
  BOOST_TEST(save_as(zero, 20, 22));
  content_is(zero, 22);
  content_is(one, 22);
  BOOST_TEST((summary_of(*w.store, "a").complete_steps == std::vector<std::uint64_t>{20}));
}

BOOST_DATA_TEST_CASE(a_rank_that_registers_again_goes_on_with_its_step, ways, way) {
  two_ranks job{way};
  BOOST_TEST(job.all_save(1));
  BOOST_TEST(!job.saves(0, 2));
  job.registers(1, 1);
  BOOST_TEST(job.saves(1, 2));
  BOOST_TEST(!job.saves(0, 3));
  job.registers(0, 1);
  BOOST_TEST(job.saves(1, 3));
  BOOST_TEST(job.newest() == 3u);
}

BOOST_DATA_TEST_CASE(
  a_job_that_outlives_the_service_goes_on_with_its_step, ways* orders, way, first) {
  two_ranks job{way};
  // Rank 1 has a part in the run from when it registered, not from its first save on.
  BOOST_TEST(!job.saves(0, 1));
  job.reopen();
  for (auto rank : {first, 1 - first})
    job.registers(rank, 1);
  BOOST_TEST(job.saves(1, 1));
  BOOST_TEST(!job.saves(1, 2));
  job.reopen();
  for (auto rank : {first, 1 - first})
    job.registers(rank, 1);
  BOOST_TEST(job.saves(0, 2));
  BOOST_TEST(job.newest() == 2u);
}

BOOST_DATA_TEST_CASE(
  a_replaced_rank_does_not_complete_what_the_others_saved_before, ways* reopenings, way, reopens) {
  two_ranks job{way};
  BOOST_TEST(job.all_save(1));
  BOOST_TEST(!job.saves(0, 2));
  if (reopens) {
    job.reopen();
    job.registers(0, 1);
  }
  job.registers(1, 2);
  BOOST_TEST(!job.saves(1, 2));
  BOOST_TEST(job.newest() == 1u);
  // Rank 0 went back with it, and goes on without registering anew.
  BOOST_TEST(job.saves(0, 2));
  BOOST_TEST(job.newest() == 2u);
  // The replacement is one of them now.
  job.registers(1, 2);
  BOOST_TEST(job.all_save(3));
}

BOOST_DATA_TEST_CASE(a_save_begun_before_a_rank_was_replaced_counts_as_before, ways, way) {
  two_ranks job{way};
  BOOST_TEST(job.all_save(1));
  auto pending = begin(*job.store, "a", 0, 2);
  BOOST_REQUIRE(pending);
  job.registers(1, 2);
  BOOST_TEST(!job.saves(1, 2));
  BOOST_REQUIRE(finish(**pending, job.ranks[0], 2));
  BOOST_TEST(!(*pending)->complete());
  BOOST_TEST(job.newest() == 1u);
}

BOOST_DATA_TEST_CASE(
  a_job_started_anew_does_not_complete_what_the_last_one_saved, ways* reopenings* orders, way,
  reopens, first) {
  two_ranks job{way};
  BOOST_TEST(job.all_save(1));
  BOOST_TEST(!job.saves(first, 2));
  for (auto rank : {0u, 1u})
    job.store->leave("a", rank, false);
  if (reopens)
    job.reopen();
  // The one that saved dies again before its fellow is there.
  job.registers(first, 2);
  BOOST_TEST(!job.saves(first, 2));
  job.store->leave("a", job.ranks[first].rank, false);
  job.registers(1 - first, 3);
  BOOST_TEST(!job.saves(1 - first, 2));
  BOOST_TEST(job.newest() == 1u);
  job.registers(first, 3);
  BOOST_TEST(job.saves(first, 2));
  BOOST_TEST(job.newest() == 2u);
}

BOOST_DATA_TEST_CASE(a_living_job_that_goes_back_does_not_mix_its_steps, ways* orders, way, first) {
  two_ranks job{way};
  for (auto step : {1, 2, 3})
    BOOST_TEST(job.all_save(step));
  // Back to 2, and 3 anew by one rank: the other one's 3 is of before.
  BOOST_TEST(!job.saves(first, 3));
  BOOST_TEST(job.newest() == 3u);
  BOOST_TEST(job.saves(1 - first, 3));
  BOOST_TEST(job.all_save(4));
}

// Only one of them had saved the step when both went back; the other one comes first now.
BOOST_DATA_TEST_CASE(
  a_living_job_that_says_it_went_back_does_not_mix_its_steps, ways* orders, way, first) {
  two_ranks job{way};
  BOOST_TEST(job.all_save(1));
  BOOST_TEST(!job.saves(first, 2));
  BOOST_TEST(!job.saves(1 - first, 2, true));
  BOOST_TEST(job.newest() == 1u);
  BOOST_TEST(job.saves(first, 2, true));
  BOOST_TEST(job.newest() == 2u);
  BOOST_TEST(job.all_save(3));
}

// Each of them says so with every save, and may have to register again before the first one.
BOOST_DATA_TEST_CASE(ranks_that_went_back_share_one_run, ways* orders, way, first) {
  two_ranks job{way};
  BOOST_TEST(job.all_save(1));
  BOOST_TEST(job.all_save(2));
  std::uint64_t run_mins[] = {job.runs[0] + 1, job.runs[1] + 1};
  auto saves = [&](int rank, std::uint64_t step) {
    return job.saves_from(run_mins[rank], rank, step);
  };
  BOOST_TEST(!saves(first, 2));
  job.registers(1 - first, 1);
  // The save is given up, and sent anew by the next registration.
  BOOST_TEST(begin(*job.store, save_spec{"a", job.ranks[1 - first].rank, 2, run_mins[1 - first]})
               .has_value());
  job.registers(1 - first, 1);
  BOOST_TEST(saves(1 - first, 2));
  BOOST_TEST(!saves(1 - first, 3));
  job.registers(first, 1);
  BOOST_TEST(saves(first, 3));
  BOOST_TEST(job.runs[0] == job.runs[1]);
  BOOST_TEST(job.runs[0] == run_mins[0]);
}

BOOST_DATA_TEST_CASE(a_request_does_not_use_up_the_numbers_of_runs, ways, way) {
  two_ranks job{way};
  for (std::uint64_t step : {1, 2, 3})
    job.saves_from(~std::uint64_t{0}, 0, step);
  BOOST_TEST(job.runs[0] < std::uint64_t{1} << 40);
  BOOST_TEST(job.all_save(4));
}

BOOST_DATA_TEST_CASE(
  a_rank_that_ended_in_order_before_others_came_shares_its_step, ways* reopenings, way, reopens) {
  world w{way};
  auto zero = shard_of("a", {mib}, 0, 2), one = shard_of("a", {mib + 8}, 1, 2);
  w.enroll_or_fail(zero);
  w.save_or_fail(zero, 1);
  w.store->leave("a", 0, true);
  if (reopens)
    w.reopen();
  w.enroll_or_fail(one);
  w.save_or_fail(one, 1);
  BOOST_TEST((summary_of(*w.store, "a").complete_steps == std::vector<std::uint64_t>{1}));
}

BOOST_DATA_TEST_CASE(ranks_of_one_life_share_a_run_one_after_the_other, ways, way) {
  world w{way};
  auto zero = shard_of("a", {mib}, 0, 2), one = shard_of("a", {mib + 8}, 1, 2);
  for (auto* shard : {&zero, &one}) {
    shard->life = 7;
    for (std::uint64_t step : {1, 2}) {
      w.enroll_or_fail(*shard);
      w.save_or_fail(*shard, step);
      w.store->leave("a", shard->rank, false);
    }
  }
  BOOST_TEST((summary_of(*w.store, "a").complete_steps == std::vector<std::uint64_t>{1, 2}));
}

BOOST_AUTO_TEST_SUITE_END()
