// Runs ranks that save the same steps at different speeds. A step that all of them have saved can
// be restored, and no rank waits for ever.
#include "pmem_world.hpp"

#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/dice.hpp>
#include <millrace/tests/support/process.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <set>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;

// Named, for the lambdas of data tests carry these types.
namespace pmem_lockstep_tests {

const auto ways = boost::unit_test::data::make(pool_ways());

/// One job in a pool: registers, saves, and what a rank that waits is told.
struct job {
  job(world& at, std::string name, std::uint32_t world_size, std::uint32_t keep = 2)
    : w(at), model(std::move(name)), told(world_size), runs(world_size), run_mins(world_size) {
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      shards.push_back(shard_of(model, {2 * kib + rank}, rank, world_size, keep));
  }

  void registers(std::uint32_t rank, std::uint64_t life = 1) {
    w.store->leave(model, rank, false);
    shards[rank].life = 100 * life + rank + 1;
    w.enroll_or_fail(shards[rank]);
  }
  void all_register(std::uint64_t life = 1) {
    for (auto& shard : shards)
      registers(shard.rank, life);
  }

  using version = std::unique_ptr<pending_version>;
  result<version> begins(std::uint32_t rank, std::uint64_t step, bool went_back = false) {
    told[rank] = std::make_shared<std::atomic<bool>>(false);
    if (went_back)
      run_mins[rank] = runs[rank] + 1;
    auto pending =
      begin(*w.store, save_spec{model, rank, step, run_mins[rank]}, [flag = told[rank]] {
        *flag = true;
      });
    if (pending)
      runs[rank] = (*pending)->run();
    return pending;
  }
  /// A save from its begin to its end, which must not have to wait.
  void saves(std::uint32_t rank, std::uint64_t step, bool went_back = false) {
    auto pending = begins(rank, step, went_back);
    BOOST_REQUIRE_MESSAGE(pending, why(pending));
    BOOST_REQUIRE(finish(**pending, shards[rank], step));
  }
  void all_save(std::uint64_t step) {
    for (auto& shard : shards)
      saves(shard.rank, step);
  }
  /// Why a save has to wait.
  std::string waits(std::uint32_t rank, std::uint64_t step) {
    auto pending = begins(rank, step);
    BOOST_REQUIRE(!pending);
    BOOST_TEST((pending.error().code() == errc::busy));
    return pending.error().detail();
  }
  /// Whether a rank that waits is told to ask again.
  bool is_told(std::uint32_t rank) {
    return eventually([&] { return told[rank]->load(); });
  }
  std::uint64_t newest() { return newest_step(*w.store, model, 0).value_or(0); }

  world& w;
  std::string model;
  std::vector<shard_spec> shards;
  std::vector<std::shared_ptr<std::atomic<bool>>> told;
  std::vector<std::uint64_t> runs;     // in which each rank saved last
  std::vector<std::uint64_t> run_mins; // of its saves since it went back
};

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

} // namespace pmem_lockstep_tests

using namespace pmem_lockstep_tests;

BOOST_AUTO_TEST_SUITE(pmem_lockstep)

BOOST_DATA_TEST_CASE(a_rank_that_is_ahead_does_not_overwrite_its_part_of_a_step, ways, way) {
  world w{way};
  job both{w, "a", 2};
  both.all_register();
  both.all_save(1);
  both.saves(0, 2);
  auto why = both.waits(0, 3);
  BOOST_TEST(says(why, "holds the newest step"), why);
  BOOST_TEST(says(why, "(step 2) waits for rank 1 to save that step"), why);
  BOOST_TEST(!both.told[0]->load());
  both.saves(1, 2);
  // Both ranks have seen `durable` for step 2.
  BOOST_TEST(both.newest() == 2u);
  BOOST_TEST(both.is_told(0));
  both.saves(0, 3);
  BOOST_TEST(both.newest() == 2u);
  w.reopen();
  BOOST_TEST(both.newest() == 2u);
  BOOST_TEST(w.holds(both.shards[0], 2));
  BOOST_TEST(w.holds(both.shards[1], 2));
}

BOOST_DATA_TEST_CASE(before_the_first_complete_step_nothing_is_overwritten, ways, way) {
  world w{way};
  job both{w, "a", 2};
  // Rank 1 is late. It may come, and then it joins the run.
  both.registers(0);
  both.saves(0, 1);
  both.saves(0, 2);
  BOOST_TEST(says(both.waits(0, 3), "rank 1"));
  both.registers(1);
  both.saves(1, 1);
  BOOST_TEST(both.newest() == 1u);
  BOOST_TEST(says(both.waits(0, 3), "rank 1"));
  both.saves(1, 2);
  BOOST_TEST(both.newest() == 2u);
  both.saves(0, 3);
}

BOOST_DATA_TEST_CASE(a_step_that_another_rank_has_left_out_is_not_waited_for, ways, way) {
  world w{way};
  job three{w, "a", 3, 3};
  three.all_register();
  three.all_save(1);
  for (auto step : {2, 3})
    three.saves(0, step);
  three.saves(2, 2);
  auto why = three.waits(0, 4);
  BOOST_TEST(says(why, "(step 2) waits for rank 1 to save that step"), why);
  BOOST_TEST(says(why, "(step 3) waits for ranks 1, 2 to save that step"), why);
  three.saves(1, 3); // without step 2
  BOOST_TEST(three.is_told(0));
  three.saves(0, 4);
  BOOST_TEST(w.holds(three.shards[0], 3));
  three.saves(2, 3);
  BOOST_TEST(three.newest() == 3u);
}

BOOST_DATA_TEST_CASE(a_further_slot_lets_a_rank_be_a_further_step_ahead, ways, way) {
  world w{way};
  job both{w, "a", 2, 3};
  both.all_register();
  both.all_save(1);
  for (auto step : {2, 3})
    both.saves(0, step);
  both.waits(0, 4);
  both.saves(1, 2);
  BOOST_TEST(both.newest() == 2u);
  both.saves(0, 4);
  both.waits(0, 5);
}

BOOST_DATA_TEST_CASE(a_service_that_starts_anew_still_waits, ways, way) {
  world w{way};
  job both{w, "a", 2};
  both.all_register();
  both.all_save(1);
  both.saves(0, 2);
  w.reopen();
  both.registers(0);
  BOOST_TEST(says(both.waits(0, 3), "rank 1"));
  both.registers(1);
  BOOST_TEST(says(both.waits(0, 3), "rank 1"));
  both.saves(1, 2);
  BOOST_TEST(both.is_told(0));
  BOOST_TEST(both.newest() == 2u);
}

BOOST_DATA_TEST_CASE(a_rank_whose_fellow_is_replaced_waits_no_longer, ways, way) {
  world w{way};
  job both{w, "a", 2};
  both.all_register();
  both.all_save(1);
  both.saves(0, 2);
  both.waits(0, 3);
  w.store->leave("a", 1, false);
  BOOST_TEST(!both.told[0]->load());
  both.registers(1, 2);
  BOOST_TEST(both.is_told(0));
  both.saves(0, 3);
  both.saves(1, 3);
  BOOST_TEST(both.newest() == 3u);
}

BOOST_DATA_TEST_CASE(a_rank_whose_fellow_goes_back_waits_no_longer, ways, way) {
  world w{way};
  job both{w, "a", 2};
  both.all_register();
  both.all_save(5);
  both.saves(0, 6);
  both.waits(0, 7);
  both.saves(1, 3, true);
  BOOST_TEST(both.is_told(0));
  both.saves(0, 3, true);
  BOOST_TEST(both.newest() == 3u);
}

// Another rank's save of that step began before, so it may still complete the step.
BOOST_DATA_TEST_CASE(a_rank_that_goes_back_waits_for_saves_that_run, ways, way) {
  world w{way};
  for (auto ends_well : {true, false}) {
    job both{w, ends_well ? "a" : "b", 2};
    both.all_register();
    both.all_save(5);
    both.saves(0, 6);
    auto running = both.begins(1, 6);
    BOOST_REQUIRE(running);
    auto refused = both.begins(0, 3, true);
    BOOST_REQUIRE(!refused);
    if (ends_well)
      BOOST_REQUIRE(finish(**running, both.shards[1], 6));
    *running = nullptr;
    BOOST_TEST(both.is_told(0));
    BOOST_TEST(both.newest() == (ends_well ? 6u : 5u));
    both.saves(0, 3, true);
    BOOST_TEST(both.newest() == (ends_well ? 6u : 5u));
  }
}

BOOST_DATA_TEST_CASE(a_version_that_is_awaited_is_freed_by_nothing, ways, way) {
  world w{way};
  job both{w, "a", 2, 4};
  both.all_register();
  both.all_save(1);
  for (auto step : {2, 3})
    both.saves(0, step);
  w.store->leave("a", 0, true);
  auto report = repack(*w.store);
  BOOST_REQUIRE_MESSAGE(report, why(report));
  BOOST_TEST(report->versions_freed == 0u);
  both.shards[0].keep = 2;
  both.registers(0);
  for (std::uint64_t step : {2, 3}) {
    BOOST_TEST(w.holds(both.shards[0], step));
    both.saves(1, step);
    BOOST_TEST(both.newest() == step);
  }
}

namespace {

/// A job in lockstep: no rank asks for a step before all have staged the one before. Ranks come in
/// any order; saves fail, ranks are replaced, the service starts anew.
class lockstep_run {
public:
  lockstep_run(world& w, std::uint64_t seed)
    : dice_(seed), job_(
                     w, "m" + std::to_string(seed), static_cast<std::uint32_t>(dice_.between(1, 8)),
                     static_cast<std::uint32_t>(dice_.between(2, 3))),
      ranks_(job_.shards.size()), lives_(ranks_.size(), life_) {
    job_.all_register(life_);
  }

  void run(std::uint64_t steps) {
    auto events = 0;
    while (std::ranges::any_of(ranks_, [&](auto& r) { return r.ended < steps; })) {
      // Each step takes a few events of each rank.
      BOOST_REQUIRE_MESSAGE(++events < 100'000, "the ranks wait for ever: " << described());
      if (dice_.percent(1))
        dice_.percent(50) && !is_going_back() ? restart_service() : restart_job();
      else
        act(static_cast<std::uint32_t>(dice_.below(ranks_.size())));
    }
    for (auto& shard : job_.shards)
      job_.w.store->leave(job_.model, shard.rank, false);
    check();
    BOOST_TEST(erase(*job_.w.store, job_.model).ok());
  }

private:
  struct rank_state {
    std::uint64_t staged = 0;     // the newest step whose bytes have arrived, or that failed
    std::uint64_t ended = 0;      // the newest step that is done, or that failed
    job::version filling;         // of the step after `ended`
    bool waits = false;           // for a slot
    bool went_back = false;       // since its last save
    std::set<std::uint64_t> done; // steps that it has seen `durable` for
  };

  void act(std::uint32_t rank) {
    auto& r = ranks_[rank];
    auto step = r.ended + 1;
    if (r.filling)
      return end(rank, step);
    auto all_staged = [&](auto& other) { return other.staged >= r.ended; };
    if (!std::ranges::all_of(ranks_, all_staged))
      return;
    auto told = job_.told[rank];
    auto pending = job_.begins(rank, step, r.went_back);
    if (!pending) {
      BOOST_REQUIRE_MESSAGE(pending.error().code() == errc::busy, why(pending));
      r.waits = true;
      return;
    }
    // It has asked by itself here. A save of the product asks only when it is told to.
    if (std::exchange(r.waits, false))
      BOOST_TEST_REQUIRE(eventually([&] { return told->load(); }), "told: " << described());
    r.filling = std::move(*pending);
    r.staged = step;
    r.went_back = false;
  }

  void end(std::uint32_t rank, std::uint64_t step) {
    auto& r = ranks_[rank];
    auto fails = dice_.percent(4);
    if (!fails) {
      BOOST_REQUIRE(finish(*r.filling, job_.shards[rank], step));
      r.done.insert(step);
    }
    r.filling = nullptr;
    r.ended = step;
    check();
  }

  // All ranks have seen `durable` for it since the job began or went back.
  std::uint64_t promised() const {
    auto& first = ranks_.front().done;
    for (auto at = first.rbegin(); at != first.rend(); ++at)
      if (std::ranges::all_of(ranks_, [&](auto& r) { return r.done.contains(*at); }))
        return *at;
    return 0;
  }

  void check() {
    auto least = promised();
    if (least == 0)
      return;
    for (auto& shard : job_.shards) {
      auto newest = newest_step(*job_.w.store, job_.model, shard.rank);
      BOOST_REQUIRE_MESSAGE(newest, why(newest));
      BOOST_TEST_REQUIRE(*newest >= least, described());
      BOOST_TEST_REQUIRE(job_.w.holds(shard));
    }
  }

  // A rank begins a run with its first save after it went back, unless it has no part in the newest
  // run yet. The promise holds within a run, so the fellows of such a rank must not have saved.
  bool is_going_back() const {
    return std::ranges::any_of(ranks_, [](auto& r) { return r.went_back; });
  }

  // Saves that ran have failed. Their ranks go on with the next step.
  void drop_saves() {
    for (auto& r : ranks_) {
      if (std::exchange(r.filling, nullptr))
        r.ended = r.staged;
      r.waits = false;
    }
  }

  void restart_service() {
    drop_saves();
    job_.w.reopen();
    for (auto& shard : job_.shards)
      job_.registers(shard.rank, lives_[shard.rank]);
    check();
  }

  // A rank has died, or all have. It is replaced, and all go back to the newest step.
  void restart_job() {
    drop_saves();
    check();
    auto newest = job_.newest();
    auto all = is_going_back() || dice_.percent(30);
    auto victim = dice_.below(ranks_.size());
    ++life_;
    for (auto& shard : job_.shards)
      if (all)
        job_.w.store->leave(job_.model, shard.rank, false);
    for (auto& shard : job_.shards) {
      auto replaced = all || victim == shard.rank;
      if (replaced)
        job_.registers(shard.rank, lives_[shard.rank] = life_);
      auto& r = ranks_[shard.rank];
      r = {};
      r.staged = r.ended = newest;
      r.went_back = !replaced;
      if (newest > 0)
        r.done = {newest};
    }
  }

  std::string described() const {
    std::string text = job_.model;
    for (auto& r : ranks_)
      text += fmt::format(
        " [staged {}, ended {}{}{}]", r.staged, r.ended, r.filling ? ", filling" : "",
        r.waits ? ", waits" : "");
    return text + fmt::format(" promised {}", promised());
  }

  dice dice_;
  job job_;
  std::vector<rank_state> ranks_;
  std::uint64_t life_ = 1; // the latest
  std::vector<std::uint64_t> lives_;
};

} // namespace

BOOST_DATA_TEST_CASE(a_step_that_all_ranks_have_saved_is_restored_whatever_dies, ways, way) {
  world w{way};
  auto seeds = way == in_place_way() ? 60u : 4u;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed)
    lockstep_run{w, seed}.run(25);
}

BOOST_AUTO_TEST_SUITE_END()
