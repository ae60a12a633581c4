// The log: what its level lets through, and where the lines go.
#include <millrace/core/log.hpp>
#include <millrace/tests/support/kept_log.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace;

BOOST_AUTO_TEST_SUITE(the_log)

BOOST_AUTO_TEST_CASE(a_line_is_written_from_its_level_up) {
  testing::kept_log lines;
  log().info("unseen path={}", "a");
  log().warn("seen path={} bytes={}", "b", 7);
  BOOST_TEST(configure_log("info"));
  log().debug("unseen path={}", "c");
  log().at(log_level::info, "seen path={}", std::string{"d"});
  BOOST_TEST(configure_log("off"));
  log().error("unseen");
  BOOST_TEST(configure_log("warn"));
  BOOST_TEST(lines.count("") == 2u, lines.text());
  BOOST_TEST(lines.count("seen path=b bytes=7") == 1u);
  BOOST_TEST(lines.count("info seen path=d") == 1u);
}

BOOST_AUTO_TEST_CASE(an_unknown_level_changes_nothing) {
  testing::kept_log lines;
  BOOST_TEST(!configure_log("loud"));
  BOOST_TEST(!configure_log(""));
  log().warn("seen");
  log().info("unseen");
  BOOST_TEST(lines.count("") == 1u, lines.text());
}

BOOST_AUTO_TEST_CASE(lines_return_to_the_outer_stream) {
  testing::kept_log outer;
  {
    testing::kept_log inner;
    log().warn("inner");
    BOOST_TEST(inner.count("inner") == 1u);
  }
  log().warn("outer");
  BOOST_TEST(outer.count("inner") == 0u);
  BOOST_TEST(outer.count("outer") == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
