// Kills a process with a pool on a disk at any instant.
#include "pmem_crash_run.hpp"

#include <boost/test/unit_test.hpp>

using namespace millrace;
using namespace millrace::testing;

BOOST_AUTO_TEST_SUITE(pmem_crash_on_a_disk)

BOOST_AUTO_TEST_CASE(a_kill_at_a_named_point_leaves_the_newest_step_or_the_next) {
  kill_at_every_point({on_disk}, {});
}

BOOST_AUTO_TEST_CASE(a_kill_at_any_instant_leaves_the_newest_step_or_the_next) {
  kill_at_random({on_disk}, 100, 30);
}

BOOST_AUTO_TEST_SUITE_END()
