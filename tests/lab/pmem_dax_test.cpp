// Tests pools on real persistent memory: a file that is mapped with MAP_SYNC, or a whole device.
// MILLRACE_TEST_PMEM names the directory or the device.
#include <millrace/storage/pmem/medium/format.hpp>
#include <millrace/tests/crash/small_checkpoints.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/pool_place.hpp>

#include <boost/test/unit_test.hpp>

#include <fstream>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;

namespace {

constexpr std::uint64_t mib = 1u << 20;

/// A pool made as `millrace pool create` makes it.
struct fixture {
  fixture() {
    if (place.is_device())
      wipe_device(place.path());
    auto info = create_pool(options);
    BOOST_REQUIRE_MESSAGE(info, why(info));
    made = *info;
  }

  std::shared_ptr<pool> open_or_fail() const {
    auto opened = open_pool(options);
    BOOST_REQUIRE_MESSAGE(opened, why(opened));
    return *opened;
  }
  void check_at_rest(std::uint64_t versions) const {
    auto report = check_pool(place.path(), true);
    BOOST_REQUIRE_MESSAGE(report, why(report));
    for (auto& problem : report->problems)
      BOOST_ERROR(problem);
    BOOST_TEST(report->versions == versions);
    BOOST_TEST(report->unreachable_bytes == 0u);
  }
  /// Changes bytes of the file or device from outside.
  void overwrite(std::uint64_t offset, const void* data, std::size_t size_bytes) const {
    auto length = (offset + size_bytes + 2 * mib - 1) / (2 * mib) * (2 * mib);
    auto fd = ::open(place.path().c_str(), O_RDWR | O_CLOEXEC);
    auto* mapped = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    BOOST_REQUIRE(mapped != MAP_FAILED);
    std::memcpy(static_cast<std::byte*>(mapped) + offset, data, size_bytes);
    ::munmap(mapped, length);
  }

  pool_place place{pool_way::persistent_memory};
  pool_options options = place.options();
  pool_info made;
};

void save_all(checkpoint_store& at, const std::vector<shard_spec>& shards, std::uint64_t step) {
  for (auto& shard : shards) {
    auto saved = save_either_way(at, shard, step);
    BOOST_REQUIRE_MESSAGE(saved.ok(), saved.to_string());
  }
}

std::uint64_t device_bytes(const std::string& path) {
  std::uint64_t size = 0;
  auto name = std::filesystem::path{path}.filename().string();
  std::ifstream{"/sys/bus/dax/devices/" + name + "/size"} >> size;
  return size;
}

} // namespace

BOOST_AUTO_TEST_SUITE(pools_on_persistent_memory)

BOOST_AUTO_TEST_CASE(the_medium_is_seen_and_a_device_is_taken_whole) {
  fixture f;
  auto expected = f.place.is_device() ? device_bytes(f.place.path()) : f.options.capacity_bytes;
  BOOST_TEST((f.made.medium == pool_medium::dax));
  BOOST_TEST(f.made.size_bytes == expected);
  auto seen = inspect_pool(f.place.path());
  BOOST_REQUIRE_MESSAGE(seen, why(seen));
  BOOST_TEST(seen->uuid == f.made.uuid);
  f.check_at_rest(0);
  f.options.medium = pool_medium::automatic;
  auto opened = f.open_or_fail();
  BOOST_TEST((opened->info().medium == pool_medium::dax));
  BOOST_TEST(!opened->info().direct_io);
  auto promises = opened->checkpoints()->capabilities();
  BOOST_TEST((promises.durable && promises.in_place && promises.cpu_flush));
  auto mapped = opened->mappings();
  BOOST_REQUIRE(mapped.size() == 1u);
  BOOST_TEST(mapped[0].size_bytes == expected);
}

BOOST_AUTO_TEST_CASE(steps_of_several_shards_outlive_reopening_and_repacking) {
  fixture f;
  std::vector<shard_spec> shards = {
    small_shard("alone"), small_shard("pair", 0, 2), small_shard("pair", 1, 2),
    small_shard("large")};
  for (auto round : {0, 1}) {
    auto opened = f.open_or_fail();
    auto at = opened->checkpoints();
    for (auto& shard : shards) {
      auto enrolled = enroll(*at, shard);
      BOOST_REQUIRE_MESSAGE(enrolled, why(enrolled));
      BOOST_TEST(enrolled->resumed == (round > 0));
    }
    for (std::uint64_t step = 1; step <= 5; ++step)
      save_all(*at, shards, 10 * round + step);
    BOOST_TEST(*newest_step(*at, "pair", 1) == 10u * round + 5);
    auto all = check_all_versions(*at);
    BOOST_TEST(all.ok(), all.to_string());
    BOOST_TEST(at->close(30'000).ok());
    at.reset();
    opened.reset();
    f.check_at_rest(8);
  }
  auto opened = f.open_or_fail();
  auto at = opened->checkpoints();
  BOOST_REQUIRE(enroll(*at, shards[0]));
  at->leave("alone", 0, true);
  BOOST_TEST(erase(*at, "pair").ok());
  auto report = repack(*at);
  BOOST_REQUIRE_MESSAGE(report, why(report));
  BOOST_TEST(report->versions_freed == 1u);
  BOOST_TEST(*newest_step(*at, "alone", 0) == 15u);
  BOOST_TEST(check_all_versions(*at).ok());
  BOOST_TEST(at->close(30'000).ok());
  at.reset();
  opened.reset();
  f.check_at_rest(3);
}

BOOST_AUTO_TEST_CASE(a_pool_is_neither_made_over_nor_opened_twice) {
  fixture f;
  auto again = create_pool(f.options);
  BOOST_REQUIRE(!again);
  BOOST_TEST((again.error().code() == errc::already_exists), again.error().to_string());
  auto opened = f.open_or_fail();
  auto twice = open_pool(f.options);
  BOOST_REQUIRE(!twice);
  BOOST_TEST((twice.error().code() == errc::busy), twice.error().to_string());
  BOOST_TEST((check_pool(f.place.path(), false).error().code() == errc::busy));
  opened.reset();
  BOOST_TEST(inspect_pool(f.place.path())->uuid == f.made.uuid);
}

BOOST_AUTO_TEST_CASE(what_is_no_pool_or_another_programs_is_refused) {
  fixture f;
  f.overwrite(4096, "another-layout", 15);
  auto refused = open_pool(f.options);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::invalid_argument), refused.error().to_string());
  f.overwrite(4096, pmem::pool_layout, sizeof pmem::pool_layout);
  BOOST_TEST(f.open_or_fail()->info().uuid == f.made.uuid);
  f.overwrite(0, "XXXX", 4);
  refused = open_pool(f.options);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::invalid_argument), refused.error().to_string());
  auto looked_at = check_pool(f.place.path(), false);
  BOOST_REQUIRE(!looked_at);
  BOOST_TEST((looked_at.error().code() == errc::invalid_argument), looked_at.error().to_string());
}

BOOST_AUTO_TEST_SUITE_END()
