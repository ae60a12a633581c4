// Flips bits in what libpmemobj keeps: one and forty at a time, 2,000 rounds by seed.
#include <millrace/tests/support/flipped_pool.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace::testing;

BOOST_AUTO_TEST_SUITE(pmem_flips_crash)

BOOST_AUTO_TEST_CASE(no_flipped_bit_ends_a_process_that_opens_the_pool) {
  BOOST_TEST(flip_and_open(1'000, 1'600, 1) > 0u);
}

BOOST_AUTO_TEST_CASE(nor_do_forty) { BOOST_TEST(flip_and_open(10'000, 400, 40) > 0u); }

BOOST_AUTO_TEST_SUITE_END()
