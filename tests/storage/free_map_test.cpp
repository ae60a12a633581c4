// Tests the map of free space: it finds fits, splits and merges.
#include <millrace/storage/rocksdb/free_map.hpp>
#include <millrace/storage/rocksdb/segment_store.hpp>

#include <boost/test/unit_test.hpp>

#include <random>

using namespace millrace::storage::rocksdb;

namespace {
constexpr auto unit = extent_unit_bytes;
}

BOOST_AUTO_TEST_SUITE(free_maps)

BOOST_AUTO_TEST_CASE(the_smallest_run_that_fits_is_taken) {
  free_map map;
  map.release({1, 0, 8 * unit});
  map.release({2, 0, 4 * unit});
  auto taken = map.allocate(3 * unit);
  BOOST_TEST((*taken == std::vector<extent>{{2, 0, 3 * unit}}));
  BOOST_TEST(map.free_bytes() == 9 * unit);
}

BOOST_AUTO_TEST_CASE(fragments_together_serve_what_no_run_does) {
  free_map map;
  for (std::uint32_t i = 0; i < 5; ++i)
    map.release({i, 0, 2 * unit});
  auto taken = map.allocate(9 * unit);
  BOOST_REQUIRE(taken);
  BOOST_TEST(taken->size() == 5u);
  BOOST_TEST(map.free_bytes() == unit);
  BOOST_TEST(!map.allocate(2 * unit));
  BOOST_TEST(map.free_bytes() == unit);
}

BOOST_AUTO_TEST_CASE(neighbours_merge_again_in_any_order) {
  std::mt19937_64 random{1};
  free_map map;
  map.release({1, 0, 64 * unit});
  std::vector<extent> taken;
  for (auto i = 0; i < 64; ++i)
    taken.push_back(map.allocate(unit)->at(0));
  BOOST_TEST(map.free_bytes() == 0u);
  std::shuffle(taken.begin(), taken.end(), random);
  for (auto& e : taken)
    map.release(e);
  BOOST_TEST(map.is_free(1, 64 * unit));
}

BOOST_AUTO_TEST_CASE(what_is_taken_cannot_be_carved) {
  free_map map;
  map.release({1, 0, 8 * unit});
  BOOST_TEST(map.carve({1, 2 * unit, 2 * unit}));
  BOOST_TEST(!map.carve({1, 3 * unit, 2 * unit}));
  BOOST_TEST(!map.carve({1, 7 * unit, 2 * unit}));
  BOOST_TEST(!map.carve({2, 0, unit}));
  BOOST_TEST(!map.carve({1, ~0ull, unit}));
  BOOST_TEST(map.free_bytes() == 6 * unit);
}

BOOST_AUTO_TEST_CASE(a_run_of_the_stream_is_found_in_its_extents) {
  std::vector<extent> extents = {{1, 100 * unit, unit}, {2, 0, 2 * unit}};
  auto runs = locate(extents, unit / 2, 2 * unit, unit);
  BOOST_REQUIRE(runs.size() == 3u);
  BOOST_TEST((runs[0].file == 1 && runs[0].offset == 100 * unit + unit / 2));
  BOOST_TEST((runs[1].file == 2 && runs[1].offset == 0 && runs[1].from == unit / 2));
  BOOST_TEST((runs[2].offset == unit && runs[2].length == unit / 2));
}

BOOST_AUTO_TEST_SUITE_END()
