// Watches of complete steps at the actor of a provider's checkpoints.
#include "checkpoint_fixture.hpp"

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

struct step_watch_fixture : checkpoint_fixture {
  bool parked(std::uint64_t number, bool any, std::uint64_t than) {
    watch_request request;
    request.name = "m";
    request.any = any;
    request.than = than;
    request.number = number;
    request.timeout_ms = 60'000;
    auto pending = ask(manager, request);
    return outcome<done_reply>(pending).has_value();
  }
  auto ask_for_news() {
    watch_news_request request;
    request.wait_ms = 60'000;
    return ask(manager, request);
  }

  std::uint64_t enroll_rank(std::uint32_t rank) {
    auto request = enrolling();
    request.shard.rank = rank;
    request.shard.world_size = 2;
    request.shard.life = 1;
    return enroll(std::move(request));
  }

  /// Returns true if the request for news has an answer; saves and their answers come first.
  template <class Pending>
  std::vector<std::uint64_t> numbers(Pending& pending) {
    auto told = outcome<watch_news>(pending);
    BOOST_TEST_REQUIRE(told.has_value());
    std::vector<std::uint64_t> out;
    for (auto& item : told->items) {
      BOOST_TEST(item.code == 0);
      out.push_back(item.number);
    }
    return out;
  }
};

using several_numbers = std::vector<std::uint64_t>;

} // namespace

BOOST_FIXTURE_TEST_SUITE(step_watches, step_watch_fixture)

BOOST_AUTO_TEST_CASE(a_step_counts_when_all_ranks_have_it) {
  auto first = enroll_rank(0), second = enroll_rank(1);
  BOOST_TEST_REQUIRE(parked(1, true, 0));
  BOOST_TEST(status().watches == 1u);
  save(first, 0);
  BOOST_TEST(status().watches == 1u);
  save(second, 0);
  BOOST_TEST(status().watches == 0u);
  auto pending = ask_for_news();
  BOOST_TEST((numbers(pending) == several_numbers{1}));
}

BOOST_AUTO_TEST_CASE(only_steps_above_the_one_named_count) {
  auto number = enroll(enrolling());
  save(number, 5);
  BOOST_TEST_REQUIRE(parked(1, false, 5));
  BOOST_TEST_REQUIRE(parked(2, false, 6));
  save(number, 5);
  BOOST_TEST(status().watches == 2u);
  save(number, 6);
  auto pending = ask_for_news();
  BOOST_TEST((numbers(pending) == several_numbers{1}));
  save(number, 7);
  auto last = ask_for_news();
  BOOST_TEST((numbers(last) == several_numbers{2}));
}

BOOST_AUTO_TEST_CASE(watches_of_checkpoints_have_the_same_bound) {
  deps.limits.watches_max = 1;
  restart();
  BOOST_TEST(parked(1, true, 0));
  BOOST_TEST(!parked(2, true, 0));
}

BOOST_AUTO_TEST_CASE(a_manager_that_stops_says_so) {
  BOOST_TEST_REQUIRE(parked(1, true, 0));
  auto pending = ask_for_news();
  stop();
  auto told = outcome<watch_news>(pending);
  BOOST_TEST_REQUIRE(!told.has_value());
  BOOST_TEST((told.error().code() == errc::unavailable));
  // The timer of the watch is not due yet.
  manager = nullptr;
  deps.store = nullptr;
  BOOST_TEST(store.use_count() == 1);
}

BOOST_AUTO_TEST_SUITE_END()
