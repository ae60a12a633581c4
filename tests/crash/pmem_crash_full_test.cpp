// Kills a process whose pool, or its file system, is full, at any instant.
#include "pmem_crash_run.hpp"

#include <millrace/tests/support/skipped.hpp>
#include <millrace/tests/support/small_disk.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

using namespace millrace;
using namespace millrace::testing;

BOOST_AUTO_TEST_SUITE(pmem_crash_when_full)

// The pool has all of its file system.
BOOST_DATA_TEST_CASE(
  a_kill_leaves_the_newest_step_or_the_next_on_a_full_file_system,
  boost::unit_test::data::make(all_disk_kinds), kind) {
  // ext4 keeps some for itself; the rest is filled.
  small_disk disk{kind == disk_kind::ext4 ? 32u << 20 : (16u << 20) + 4096, kind};
  if (!disk.mounted())
    return skipped(small_disk::missing(kind));
  if (kind == disk_kind::ext4)
    disk.fill((16u << 20) + (64u << 10));
  kill_at_random({disk.path(), 16}, 30, 200);
}

BOOST_AUTO_TEST_CASE(a_full_pool_loses_nothing_to_a_kill) {
  for (auto reclaims : {false, true})
    BOOST_TEST(kill_at_random({in_memory, 16, reclaims}, 30, 200) > 0u);
}

BOOST_AUTO_TEST_CASE(a_full_pool_that_reclaims_loses_nothing_to_a_kill_at_a_named_point) {
  auto refused = kill_at_every_point({in_memory, 16, true}, {"pmem.commit.before_write"});
  BOOST_TEST(refused > 0u);
}

BOOST_AUTO_TEST_SUITE_END()
