// Flips bits in what libpmemobj keeps: a few of the rounds that tests/crash makes.
#include <millrace/tests/support/flipped_pool.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace::testing;

BOOST_AUTO_TEST_SUITE(pmem_flips)

BOOST_AUTO_TEST_CASE(a_pool_that_was_not_damaged_is_used) {
  flipped_pool subject;
  BOOST_TEST((subject.open_with({}) == flipped_pool::outcome::used));
}

BOOST_AUTO_TEST_CASE(no_flipped_bit_ends_a_process_that_opens_the_pool) {
  BOOST_TEST(flip_and_open(1, 60, 1) > 0u);
}

BOOST_AUTO_TEST_CASE(nor_do_forty) { BOOST_TEST(flip_and_open(1, 20, 40) > 0u); }

BOOST_AUTO_TEST_SUITE_END()
