// Tests what the thread sanitizer sees of actors. Races planted in an actor, in a session and in
// the I/O loop are reported, and without one nothing is.
#include <millrace/tests/support/process.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <iostream>

using namespace millrace::testing;

namespace {

#if !defined(__SANITIZE_THREAD__) || !defined(MILLRACE_KILL_POINTS)
struct skip {
  skip() {
    std::cout << "skipped: planted races: built without the thread sanitizer or kill points"
              << std::endl;
    std::_Exit(77);
  }
};
BOOST_TEST_GLOBAL_FIXTURE(skip);
#endif

outcome store_with_a_race_in(const std::string& place) {
  return run_program({"/usr/bin/env", "MILLRACE_PLANTED_RACE=" + place, PLANTED_RACE});
}

bool reports_a_race(const outcome& ran) {
  return ran.err.find("WARNING: ThreadSanitizer: data race") != std::string::npos;
}

} // namespace

BOOST_AUTO_TEST_SUITE(race_gate)

BOOST_AUTO_TEST_CASE(a_store_without_a_planted_race_is_reported_as_nothing) {
  auto ran = store_with_a_race_in("nowhere");
  BOOST_TEST(ran.code == 0, ran.err);
  BOOST_TEST(ran.out == "stored\n", ran.out);
  BOOST_TEST(ran.err.find("ThreadSanitizer") == std::string::npos, ran.err);
}

BOOST_DATA_TEST_CASE(
  a_planted_race_is_reported_in,
  boost::unit_test::data::make({"tensor_store", "session", "io_loop"}), place) {
  auto ran = store_with_a_race_in(place);
  BOOST_TEST(ran.code == 66, ran.err);
  BOOST_TEST(reports_a_race(ran), ran.err);
  BOOST_TEST(ran.err.find(std::string{place} + ".cpp") != std::string::npos, ran.err);
}

BOOST_AUTO_TEST_SUITE_END()
