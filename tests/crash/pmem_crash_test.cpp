// Kills a process with a pool in memory at any instant.
#include "pmem_crash_run.hpp"

#include <boost/test/unit_test.hpp>

using namespace millrace;
using namespace millrace::testing;

BOOST_AUTO_TEST_SUITE(pmem_crash)

BOOST_AUTO_TEST_CASE(a_kill_at_a_named_point_leaves_the_newest_step_or_the_next) {
  kill_at_every_point({in_memory}, {"pmem.commit.before_write"});
}

BOOST_AUTO_TEST_CASE(a_kill_at_any_instant_leaves_the_newest_step_or_the_next) {
  kill_at_random({in_memory}, 200, 200);
}

BOOST_AUTO_TEST_SUITE_END()
