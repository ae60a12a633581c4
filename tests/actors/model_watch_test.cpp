// Watches of models at the provider's actor, under the deterministic scheduler.
#include "store_fixture.hpp"

#include <boost/test/unit_test.hpp>

#include <memory>
#include <string>

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

/// One end of a connection, which asks.
struct watch_fixture : store_fixture {
  using connection = std::unique_ptr<caf::scoped_actor>;

  connection connect() { return std::make_unique<caf::scoped_actor>(system); }

  template <class Request>
  auto ask_by(connection& by, Request request) {
    auto pending = (*by)->request(store, caf::infinite, std::move(request));
    sched.run();
    return pending;
  }
  auto ask_for_news(connection& by, std::uint32_t wait_ms = 60'000) {
    watch_news_request request;
    request.wait_ms = wait_ms;
    return ask_by(by, request);
  }
  template <class Pending>
  static watch_news news(Pending& pending) {
    auto told = outcome<watch_news>(pending);
    BOOST_TEST_REQUIRE(told.has_value());
    return *told;
  }

  static watch_request watching(
    const std::string& model, std::uint64_t than, std::uint64_t number) {
    watch_request request;
    request.name = model;
    request.than = than;
    request.number = number;
    request.timeout_ms = 60'000;
    return request;
  }
  result<done_reply> park(connection& by, watch_request request) {
    auto pending = ask_by(by, std::move(request));
    return outcome<done_reply>(pending);
  }
  bool parked(connection& by, watch_request request) {
    return park(by, std::move(request)).has_value();
  }

  /// Stores a model of a few bytes. Returns its version.
  std::uint64_t publish(const std::string& model, std::uint64_t version_after = 0) {
    auto request = store_fixture::request(model, 100);
    request.source = {};
    request.eager.assign(100, 7);
    request.version_after = version_after;
    auto pending = ask(std::move(request));
    auto stored = outcome<store_receipt>(pending);
    BOOST_TEST_REQUIRE(stored.has_value());
    return stored->version;
  }
  void erase(const std::string& model) {
    erase_request request;
    request.model = model;
    auto pending = ask(request);
    BOOST_TEST_REQUIRE(outcome<done_reply>(pending).has_value());
  }
  std::uint64_t watches() {
    auto pending = ask(provider_status_request{});
    return outcome<provider_status>(pending).value().store.watches;
  }

  connection one = connect(), other = connect();
};

errc code_of(const watch_outcome& over) { return errc_from_wire(over.code); }

} // namespace

BOOST_FIXTURE_TEST_SUITE(model_watches, watch_fixture)

BOOST_AUTO_TEST_CASE(a_watch_is_over_when_a_version_is_there_and_not_before) {
  BOOST_TEST_REQUIRE(parked(one, watching("m", 0, 1)));
  auto pending = ask_for_news(one);
  auto storing = ask(request("m"));
  BOOST_TEST(!(*one)->has_next_message());
  fabric->finish();
  sched.run();
  BOOST_TEST_REQUIRE((*one)->has_next_message());
  BOOST_TEST(visible("m"));
  auto told = news(pending);
  BOOST_TEST_REQUIRE(told.items.size() == 1u);
  BOOST_TEST((told.items[0] == watch_outcome{1, 0, {}}));
  BOOST_TEST(!told.more);
  BOOST_TEST(watches() == 0u);
  static_cast<void>(outcome<store_receipt>(storing));
}

BOOST_AUTO_TEST_CASE(only_a_later_version_of_the_same_name_counts) {
  auto version = publish("m");
  BOOST_TEST_REQUIRE(parked(one, watching("m", version + 2, 1)));
  auto pending = ask_for_news(one);
  BOOST_TEST(publish("another") == version + 1);
  BOOST_TEST(publish("m") == version + 2);
  BOOST_TEST(!(*one)->has_next_message());
  BOOST_TEST(publish("m") == version + 3);
  BOOST_TEST(news(pending).items.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_version_after_an_erasure_counts) {
  auto version = publish("m");
  BOOST_TEST_REQUIRE(parked(one, watching("m", version, 1)));
  auto pending = ask_for_news(one);
  erase("m");
  BOOST_TEST(!(*one)->has_next_message());
  publish("m");
  BOOST_TEST(news(pending).items.size() == 1u);
}

BOOST_AUTO_TEST_CASE(what_comes_before_the_request_for_news_is_kept_for_it) {
  BOOST_TEST_REQUIRE(parked(one, watching("m", 0, 1)));
  publish("m");
  auto pending = ask_for_news(one);
  auto told = news(pending);
  BOOST_TEST_REQUIRE(told.items.size() == 1u);
  BOOST_TEST(told.items[0].number == 1u);
  auto again = ask_for_news(one);
  BOOST_TEST((news(again) == watch_news{}));
}

BOOST_AUTO_TEST_CASE(a_watch_ends_at_its_deadline_and_others_go_on) {
  auto short_one = watching("m", 0, 1);
  short_one.timeout_ms = 1000;
  BOOST_TEST_REQUIRE(parked(one, short_one));
  BOOST_TEST_REQUIRE(parked(one, watching("m", 0, 2)));
  auto pending = ask_for_news(one);
  pass(750ms);
  BOOST_TEST(!(*one)->has_next_message());
  pass(500ms);
  auto told = news(pending);
  BOOST_TEST_REQUIRE(told.items.size() == 1u);
  BOOST_TEST(told.items[0].number == 1u);
  BOOST_TEST((code_of(told.items[0]) == errc::deadline_exceeded));
  BOOST_TEST(told.more);
  BOOST_TEST(watches() == 1u);
}

BOOST_AUTO_TEST_CASE(a_request_for_news_ends_at_its_time_without_any) {
  BOOST_TEST_REQUIRE(parked(one, watching("m", 0, 1)));
  auto pending = ask_for_news(one, 1000);
  pass(1250ms);
  auto told = news(pending);
  BOOST_TEST(told.items.empty());
  BOOST_TEST(told.more);
  BOOST_TEST(watches() == 1u);
}

BOOST_AUTO_TEST_CASE(a_watch_that_is_taken_back_is_not_heard_of) {
  BOOST_TEST_REQUIRE(parked(one, watching("m", 0, 1)));
  BOOST_TEST_REQUIRE(parked(one, watching("m", 0, 2)));
  auto pending = ask_for_news(one);
  unwatch_request back;
  back.number = 1;
  auto taken = ask_by(other, back); // another connection's numbers are its own
  BOOST_TEST(outcome<done_reply>(taken).has_value());
  BOOST_TEST(watches() == 2u);
  auto own = ask_by(one, back);
  BOOST_TEST(outcome<done_reply>(own).has_value());
  BOOST_TEST(watches() == 1u);
  publish("m");
  auto told = news(pending);
  BOOST_TEST_REQUIRE(told.items.size() == 1u);
  BOOST_TEST(told.items[0].number == 2u);
}

BOOST_AUTO_TEST_CASE(watches_end_with_the_connection_through_which_they_came) {
  BOOST_TEST_REQUIRE(parked(one, watching("m", 0, 1)));
  BOOST_TEST_REQUIRE(parked(other, watching("m", 0, 1)));
  auto pending = ask_for_news(other);
  one.reset();
  sched.run();
  BOOST_TEST(watches() == 1u);
  publish("m");
  BOOST_TEST(news(pending).items.size() == 1u);
}

BOOST_AUTO_TEST_CASE(numbers_that_are_0_or_in_use_are_refused) {
  BOOST_TEST((park(one, watching("m", 0, 0)).error().code() == errc::invalid_argument));
  BOOST_TEST_REQUIRE(parked(one, watching("m", 0, 1)));
  BOOST_TEST((park(one, watching("n", 0, 1)).error().code() == errc::invalid_argument));
  BOOST_TEST(parked(other, watching("m", 0, 1)));
  BOOST_TEST((park(one, watching("", 0, 2)).error().code() == errc::invalid_argument));
  BOOST_TEST((park(one, watching("\x01own", 0, 2)).error().code() == errc::not_found));
  BOOST_TEST(watches() == 2u);
}

BOOST_AUTO_TEST_CASE(processes_share_the_bound_and_places_come_back_with_the_news) {
  limits.watches_max = 4;
  restart();
  auto greedy = process_of("user 1"), late = process_of("user 2");
  auto of = [](watch_request request, const asker& who) {
    request.from = who;
    return request;
  };
  BOOST_TEST_REQUIRE(parked(one, of(watching("m", 0, 1), greedy)));
  BOOST_TEST_REQUIRE(parked(one, of(watching("m", 0, 2), greedy)));
  auto refused = park(one, of(watching("m", 0, 3), greedy));
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::busy));
  BOOST_TEST(refused.error().detail().find("limits.watches_max") != std::string::npos);
  BOOST_TEST(parked(other, of(watching("m", 0, 1), late)));
  publish("m");
  // They are over, and nobody has heard of it.
  BOOST_TEST(!parked(one, of(watching("m", 0, 3), greedy)));
  auto pending = ask_for_news(one);
  BOOST_TEST(news(pending).items.size() == 2u);
  BOOST_TEST(parked(one, of(watching("m", 0, 3), greedy)));
  other.reset();
  one.reset();
  sched.run();
  auto next = connect();
  BOOST_TEST(parked(next, of(watching("m", 0, 1), greedy)));
  BOOST_TEST(parked(next, of(watching("m", 0, 2), greedy)));
}

BOOST_AUTO_TEST_CASE(watches_of_a_name_end_together_in_as_few_answers_as_fit) {
  for (std::uint64_t number = 1; number <= 1000; ++number)
    BOOST_TEST_REQUIRE(parked(one, watching("m", 0, number)));
  BOOST_TEST(watches() == 1000u);
  auto pending = ask_for_news(one);
  publish("m");
  BOOST_TEST(watches() == 0u);
  auto told = news(pending);
  std::size_t heard = told.items.size(), answers = 1;
  for (; told.more; ++answers) {
    auto next = ask_for_news(one);
    told = news(next);
    heard += told.items.size();
  }
  BOOST_TEST(heard == 1000u);
  BOOST_TEST(answers == 4u);
}

// The request for news and a watch end at the same time.
BOOST_AUTO_TEST_CASE(what_ends_together_with_the_request_for_news_is_not_lost) {
  auto short_one = watching("m", 0, 1);
  short_one.timeout_ms = 1000;
  BOOST_TEST_REQUIRE(parked(one, short_one));
  auto pending = ask_for_news(one, 1000);
  pass(1250ms);
  auto told = news(pending);
  if (told.items.empty()) {
    BOOST_TEST(told.more);
    auto next = ask_for_news(one);
    told = news(next);
  }
  BOOST_TEST_REQUIRE(told.items.size() == 1u);
  BOOST_TEST((code_of(told.items[0]) == errc::deadline_exceeded));
  BOOST_TEST(!told.more);
  auto none = ask_for_news(one);
  BOOST_TEST((news(none) == watch_news{}));
}

BOOST_AUTO_TEST_CASE(a_provider_that_stops_says_so) {
  BOOST_TEST_REQUIRE(parked(one, watching("m", 0, 1)));
  auto pending = ask_for_news(one);
  stop();
  auto told = outcome<watch_news>(pending);
  BOOST_TEST_REQUIRE(!told.has_value());
  BOOST_TEST((told.error().code() == errc::unavailable));
}

BOOST_AUTO_TEST_CASE(a_new_view_of_the_group_ends_watches_of_the_old_one) {
  auto views = placement_alone("p", "default").histories[0];
  auto second = views.views[0];
  second.number = 2;
  auto newcomer = second.members[0];
  newcomer.id = newcomer.name = "q";
  second.members.push_back(newcomer);
  views.views.push_back(second);
  std::string name = "m";
  while (home_of(name, second)->id != "q")
    name += "m";
  BOOST_TEST_REQUIRE(parked(one, watching(name, 0, 1)));
  auto pending = ask_for_news(one);
  for (std::uint64_t settled : {0u, 2u}) {
    BOOST_TEST(!(*one)->has_next_message());
    views.settled = settled;
    auto adopting = ask(adopt_request{views});
    BOOST_TEST_REQUIRE(outcome<done_reply>(adopting).has_value());
  }
  auto told = news(pending);
  BOOST_TEST_REQUIRE(told.items.size() == 1u);
  BOOST_TEST((code_of(told.items[0]) == errc::unsupported_version));
  // The name is placed elsewhere now.
  BOOST_TEST((park(one, watching(name, 0, 2)).error().code() == errc::unsupported_version));
}

BOOST_AUTO_TEST_CASE(a_version_gets_a_larger_number_than_the_one_that_its_store_names) {
  BOOST_TEST(publish("m") == 1u);
  BOOST_TEST(publish("m", 100) == 101u);
  BOOST_TEST(publish("m", 7) == 102u);
  auto request = store_fixture::request("m", 100);
  request.version_after = ~std::uint64_t{0};
  auto pending = ask(std::move(request));
  auto refused = outcome<store_receipt>(pending);
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::invalid_argument));
  BOOST_TEST(publish("m") == 103u);
}

BOOST_AUTO_TEST_SUITE_END()
