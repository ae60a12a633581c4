// Damages stored bytes. The version next to a damaged one stays, since it may be the last good one.
#include "pmem_world.hpp"

#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/kept_log.hpp>
#include <millrace/tests/support/skipped.hpp>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <array>
#include <iostream>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;

// Named, for the lambdas of data tests carry these types.
namespace pmem_damage_tests {

const auto ways = boost::unit_test::data::make(pool_ways());

/// Flips a bit of the first tensor of a version, while the pool is closed.
void damage(world& w, const shard_spec& shard, std::uint64_t step) {
  auto bytes = w.owner->info().size_bytes;
  w.close();
  auto file = ::open(w.options.path.c_str(), O_RDWR | O_CLOEXEC);
  auto* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  BOOST_REQUIRE(mapped != MAP_FAILED);
  std::array<std::byte, 4096> wanted;
  fill(wanted.data(), wanted.size(), content_seed(shard.model, shard.rank, step), 0, 0);
  auto* found = ::memmem(mapped, bytes, wanted.data(), wanted.size());
  BOOST_REQUIRE(found);
  static_cast<std::byte*>(found)[99] ^= std::byte{8};
  ::munmap(mapped, bytes);
  w.open();
  BOOST_REQUIRE(!w.holds(shard, step));
}

/// Shards of one model, each of 4 MiB, with these steps; their job has ended in order.
std::vector<shard_spec> finished_job(
  world& w, const std::string& model, std::uint32_t world_size,
  std::initializer_list<std::uint64_t> steps) {
  std::vector<shard_spec> shards;
  for (std::uint32_t rank = 0; rank < world_size; ++rank)
    shards.push_back(shard_of(model, {4 * mib}, rank, world_size));
  for (auto& shard : shards)
    w.enroll_or_fail(shard);
  for (auto step : steps)
    for (auto& shard : shards)
      w.save_or_fail(shard, step);
  for (auto& shard : shards)
    w.store->leave(model, shard.rank, true);
  return shards;
}

// Opens the pool again, with low_space: reclaim. False, aloud, where its size cannot be chosen.
bool reclaims(world& w) {
  if (w.place.is_device()) {
    millrace::testing::skipped("low space: a device is as large as it is");
    return false;
  }
  w.close();
  w.options.low_space = when_low_space::reclaim;
  w.open();
  return true;
}

} // namespace pmem_damage_tests

using namespace pmem_damage_tests;

BOOST_AUTO_TEST_SUITE(pmem_damage)

BOOST_DATA_TEST_CASE(repack_frees_no_version_while_the_newest_is_damaged, ways, way) {
  world w{way};
  auto shard = finished_job(w, "a", 1, {1, 2}).front();
  damage(w, shard, 2);
  kept_log logged;
  auto report = repack(*w.store);
  BOOST_REQUIRE_MESSAGE(report, why(report));
  BOOST_TEST(report->versions_freed == 0u);
  BOOST_TEST(report->skipped > 0u);
  BOOST_TEST(w.holds(shard, 1));
  BOOST_TEST(logged.count("model a, rank 0, step 2: tensor t0 does not match") == 1u);
  BOOST_TEST(logged.count("millrace checkpoints rm a@2") == 1u);
  // A command removes the damaged version, and the next repack what is left of its slot.
  BOOST_TEST(erase(*w.store, "a", 2).ok());
  BOOST_REQUIRE(repack(*w.store));
  BOOST_TEST(w.slots(shard).size() == 1u);
  BOOST_TEST(*newest_step(*w.store, "a", 0) == 1u);
  BOOST_TEST(w.holds(shard, 1));
}

BOOST_DATA_TEST_CASE(repack_frees_no_version_of_any_rank_while_that_of_one_is_damaged, ways, way) {
  world w{way};
  auto shards = finished_job(w, "a", 2, {1, 2});
  auto other = finished_job(w, "b", 1, {1, 2}).front();
  damage(w, shards[1], 2);
  auto report = repack(*w.store);
  BOOST_REQUIRE_MESSAGE(report, why(report));
  BOOST_TEST(report->versions_freed == 1u);
  for (auto& shard : shards)
    BOOST_TEST(w.holds(shard, 1));
  BOOST_TEST((w.opening(other, 1) == errc::not_found));
  BOOST_TEST(w.holds(other, 2));
}

BOOST_DATA_TEST_CASE(low_space_reclaims_no_version_while_the_newest_is_damaged, ways, way) {
  world w{way};
  if (!reclaims(w))
    return;
  auto rotten = finished_job(w, "rotten", 1, {1, 2}).front();
  auto sound = finished_job(w, "sound", 1, {1, 2}).front();
  damage(w, rotten, 2);
  // Room for one slot too few, which the older one would give.
  auto free_mib = w.owner->info().free_bytes / mib;
  kept_log logged;
  w.enroll_or_fail(shard_of("large", {(free_mib + 3) / 2 * mib}));
  BOOST_TEST(w.holds(rotten, 1));
  BOOST_TEST((w.opening(sound, 1) == errc::not_found));
  BOOST_TEST(logged.count("model rotten, rank 0, step 2") == 1u);
  auto refused = enroll(*w.store, shard_of("more", {4 * mib}));
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::no_space));
  BOOST_TEST(w.holds(rotten, 1));
  BOOST_TEST(w.holds(sound, 2));
}

BOOST_DATA_TEST_CASE(a_job_that_died_keeps_all_while_its_newest_version_is_damaged, ways, way) {
  world w{way};
  if (!reclaims(w))
    return;
  auto dead = shard_of("dead", {4 * mib}, 0, 1, 3);
  w.enroll_or_fail(dead);
  for (auto step : {1, 2, 3})
    w.save_or_fail(dead, step);
  damage(w, dead, 3);
  auto free_mib = w.owner->info().free_bytes / mib;
  auto refused = enroll(*w.store, shard_of("large", {(free_mib + 3) / 2 * mib}));
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::no_space));
  BOOST_TEST(w.holds(dead, 1));
  BOOST_TEST(w.holds(dead, 2));
}

BOOST_AUTO_TEST_SUITE_END()
