// Makes a RocksDB bucket keep long lists of where its models are.
#include <millrace/storage/rocksdb/free_map.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;

namespace {

constexpr std::uint64_t kib = 1024, mib = 1024 * kib;

} // namespace

BOOST_AUTO_TEST_SUITE(rocksdb_places)

// Many small models are stored, every other one is erased, and a large one gets what lies between.
BOOST_AUTO_TEST_CASE(lists_of_many_small_places_are_counted_and_bounded) {
  scratch_directory directory;
  rocksdb_bucket_options options;
  options.path = directory.path() + "/bucket";
  options.capacity_bytes = 64 * mib;
  options.window_bytes = mib;
  options.segment_bytes = 4 * mib;
  auto subject = open_rocksdb_bucket(options).value();
  auto described = [&] { return subject->stats().descriptions_bytes; };
  constexpr std::uint64_t small_bytes = 68 * kib; // more than rests inside RocksDB
  constexpr auto count = 40 * mib / (2 * rocksdb::extent_unit_bytes);
  for (std::uint64_t i = 0; i < count; ++i)
    BOOST_REQUIRE(store(*subject, spec_of("small-" + std::to_string(i), {small_bytes}), 1));
  auto of_small = described();
  for (std::uint64_t i = 0; i < count; i += 2)
    BOOST_REQUIRE(erase(*subject, "small-" + std::to_string(i)).ok());
  auto before = described();
  BOOST_TEST(before <= of_small / 2 + of_small / count);
  const auto large = spec_of("large", {30 * mib});
  BOOST_REQUIRE(store(*subject, large, 7));
  auto of_places = described() - before;
  BOOST_TEST(of_places > 100 * sizeof(rocksdb::extent));
  auto with_large = described();
  subject.reset();
  options.descriptions_max_bytes = before + of_places / 2;
  subject = open_rocksdb_bucket(options).value();
  BOOST_TEST(described() == with_large);
  BOOST_TEST(check_model(*subject, "large", 7).ok());
  BOOST_REQUIRE(erase(*subject, "large").ok());
  BOOST_TEST(described() == before);
  auto refused = store(*subject, large, 7);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::no_space));
  BOOST_TEST(refused.error().detail().find("descriptions_max") != std::string::npos);
  BOOST_TEST(described() == before);
  BOOST_TEST(subject->stats().models == count / 2);
}

BOOST_AUTO_TEST_SUITE_END()
