// Tests when a stream counts as stalled.
#include <millrace/transport/tcp/stall_watch.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace::transport::tcp;

namespace {

constexpr std::uint32_t looks = 8;
constexpr std::uint64_t ahead = 1u << 20;
constexpr auto pace = stall_watch::pace_bytes;

struct watched {
  stall_watch watch{looks, ahead};
  stream_progress now{true, 0, 0};

  // The number of the look that finds it stalled, while so much moves before each; 0: none of a
  // thousand.
  int stalls_at(std::uint64_t bytes_a_look, std::uint64_t requests_a_look = 0) {
    for (int i = 1; i <= 1000; ++i) {
      now.moved_bytes += bytes_a_look;
      now.oldest_request += requests_a_look;
      if (watch.look(now))
        return i;
    }
    return 0;
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(stall_watches, watched)

BOOST_AUTO_TEST_CASE(what_is_idle_never_stalls) {
  now.busy = false;
  BOOST_TEST(stalls_at(0) == 0);
}

BOOST_AUTO_TEST_CASE(silence_is_a_stall) {
  BOOST_TEST(watched{*this}.stalls_at(0) == static_cast<int>(looks));
  now.oldest_request = 1;
  BOOST_TEST(stalls_at(0) == static_cast<int>(looks) + 1);
}

BOOST_AUTO_TEST_CASE(a_request_that_waits_needs_the_pace) {
  now.oldest_request = 1;
  BOOST_TEST(watched{*this}.stalls_at(pace / looks - 1) == static_cast<int>(looks) + 1);
  // Kept, it ends with what may lie ahead.
  auto at = watched{*this}.stalls_at(pace / looks);
  BOOST_TEST(at > static_cast<int>(ahead / pace * looks));
  BOOST_TEST(at <= static_cast<int>((ahead / pace + 2) * looks));
}

BOOST_AUTO_TEST_CASE(who_moves_fast_and_does_not_answer_has_one_timeout_more) {
  now.oldest_request = 1;
  BOOST_TEST(stalls_at(ahead) == static_cast<int>(looks) + 2);
}

BOOST_AUTO_TEST_CASE(answers_are_progress_however_small) { BOOST_TEST(stalls_at(1, 1) == 0); }

BOOST_AUTO_TEST_CASE(what_the_peer_alone_waits_for_may_be_as_slow_as_it_likes) {
  BOOST_TEST(stalls_at(1) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
