// Tests the end of a benchmark: `--strict` fails a run for a goal that was missed, and for nothing
// else.
#include <millrace/bench/common/options.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace::bench;

namespace {

row measured(double seconds) {
  row r;
  r.name = "case";
  r.size_bytes = 1;
  r.ours.add(seconds);
  return r;
}

int code_of(row r, bool strict) {
  report out{"commit", "machine"};
  out.add(std::move(r));
  run_options options;
  options.strict = strict;
  return finish(out, options);
}

} // namespace

BOOST_AUTO_TEST_SUITE(bench_report)

BOOST_AUTO_TEST_CASE(a_strict_run_fails_for_a_goal_that_was_missed) {
  auto met = measured(1), missed = measured(3), unmeasured = measured(1), aimless = measured(1);
  met.seconds_max = missed.seconds_max = 2;
  unmeasured.ratio_min = 2; // there was no peer
  BOOST_TEST(code_of(missed, true) == exit_goal_missed);
  BOOST_TEST(code_of(missed, false) == 0);
  for (auto& r : {met, unmeasured, aimless})
    BOOST_TEST(code_of(r, true) == 0);
}

BOOST_AUTO_TEST_CASE(each_kind_of_goal_can_be_missed) {
  auto slower_than_peer = measured(2), far_from_floor = measured(2), large = measured(1);
  auto fast_peer = measured(1);
  slower_than_peer.peer_s = 1;
  slower_than_peer.ratio_min = 1;
  far_from_floor.floor_s = 1;
  far_from_floor.floor_min = 0.9;
  fast_peer.floor_s = fast_peer.peer_s = 1;
  fast_peer.peer_floor_max = 0.9;
  large.size_bytes = 2;
  large.bytes_max = 1;
  for (auto& r : {slower_than_peer, far_from_floor, fast_peer, large})
    BOOST_TEST(code_of(r, true) == exit_goal_missed);
}

BOOST_AUTO_TEST_SUITE_END()
