// Weights through the public API: published by one object, followed and loaded by others.
#include "weights_fixture.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <thread>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace {

constexpr auto long_time = 60s;
const std::vector<std::string> groups{"fast", "kept", "pool"};

template <class T>
errc code_of(const future<T>& f) {
  BOOST_TEST_REQUIRE(f.wait_for(30s));
  return f.result() ? errc::ok : f.result().error().code();
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(weights_end_to_end, weights_served)

BOOST_DATA_TEST_CASE(
  what_is_published_is_told_and_loaded, data::make({false, true}) * data::make(groups), over_socket,
  group) {
  auto publisher = policy(group, over_socket).publisher(trained.views()).value();
  auto follower = policy(group, !over_socket).follow().value();
  numbered_tensors loaded;
  for (std::uint64_t version : {10u, 20u, 30u}) {
    auto news = follower.next(long_time);
    auto receipt = publish(publisher, version);
    auto told = news.get();
    BOOST_TEST(told.version == version);
    BOOST_TEST(told.stored_as == receipt.version);
    BOOST_TEST(told.size_bytes == 300'100u);
    BOOST_TEST(told.stored_at_ns > 0u);
    BOOST_TEST((follower.load(loaded.targets()).get() == told));
    BOOST_TEST(loaded.are_of(version));
    BOOST_TEST((follower.newest() == told));
  }
}

BOOST_AUTO_TEST_CASE(one_who_comes_later_gets_the_newest_alone) {
  auto publisher = policy().publisher(trained.views()).value();
  for (std::uint64_t version = 1; version <= 5; ++version)
    publish(publisher, version);
  auto follower = policy().follow().value();
  BOOST_TEST(follower.next(long_time).get().version == 5u);
  auto none = follower.next(200ms);
  BOOST_TEST((code_of(none) == errc::deadline_exceeded));
  numbered_tensors loaded;
  BOOST_TEST(policy().follow().value().load(loaded.targets()).get().version == 5u);
  BOOST_TEST(loaded.are_of(5));
}

BOOST_AUTO_TEST_CASE(metadata_of_the_publisher_comes_with_each_version) {
  publisher_options how;
  how.metadata = {{"tokenizer", "bpe"}, {"", ""}};
  auto publisher = policy().publisher(trained.views(), how).value();
  publish(publisher, 1);
  auto told = policy().follow().value().next(long_time).get();
  BOOST_TEST((told.metadata == how.metadata));
  BOOST_TEST(!told.run.empty());
  how.metadata = {{"millrace.weights.version", "7"}};
  auto refused = policy().publisher(trained.views(), how);
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::invalid_argument));
  BOOST_TEST(refused.error().detail().find("millrace.weights.version") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(numbers_of_a_publisher_rise) {
  auto publisher = policy().publisher(trained.views()).value();
  publish(publisher, 3);
  for (std::uint64_t version : {3u, 2u, 0u}) {
    auto pending = publisher.publish(version);
    BOOST_TEST((code_of(pending.staged) == errc::invalid_argument));
    BOOST_TEST((code_of(pending.stored) == errc::invalid_argument));
    BOOST_TEST(
      pending.stored.result().error().detail().find("version 3 was published before") !=
      std::string::npos);
  }
  publish(publisher, 4);
}

// As a trainer that starts again from an older checkpoint.
BOOST_AUTO_TEST_CASE(another_publisher_may_begin_below_and_is_followed) {
  auto follower = policy().follow().value();
  publish(policy().publisher(trained.views()).value(), 100);
  auto first = follower.next(long_time).get();
  auto second = policy().publisher(trained.views()).value();
  publish(second, 40);
  auto told = follower.next(long_time).get();
  BOOST_TEST(told.version == 40u);
  BOOST_TEST(told.run != first.run);
  publish(second, 41);
  BOOST_TEST(follower.next(long_time).get().version == 41u);
}

BOOST_DATA_TEST_CASE(
  no_part_of_another_version_is_ever_loaded, data::make({"fast", "kept"}), group) {
  constexpr std::uint64_t last = 60;
  auto publisher = policy(group).publisher(trained.views()).value();
  std::vector<std::jthread> replicas;
  std::vector<std::uint64_t> reached(3), torn(3), went_back(3);
  for (std::size_t i = 0; i < reached.size(); ++i)
    replicas.emplace_back([&, i] {
      auto c = client::connect(settings.node.listen.at(0));
      auto follower = c.weights("policy", group).follow().value();
      numbered_tensors loaded;
      while (reached[i] < last) {
        auto told = follower.next(long_time).get();
        auto version = follower.load(loaded.targets(), long_time).get().version;
        torn[i] += !loaded.are_of(version);
        went_back[i] += version <= reached[i] || version < told.version;
        reached[i] = version;
      }
    });
  for (std::uint64_t version = 1; version <= last; ++version) {
    trained.fill(version);
    auto pending = publisher.publish(version);
    BOOST_TEST_REQUIRE(pending.staged.result().has_value());
    // The bytes change as early as they may.
    if (version == last)
      pending.stored.get();
  }
  replicas.clear();
  for (std::size_t i = 0; i < reached.size(); ++i) {
    BOOST_TEST(reached[i] == last);
    BOOST_TEST(torn[i] == 0u);
    BOOST_TEST(went_back[i] == 0u);
  }
}

BOOST_AUTO_TEST_CASE(publications_are_made_in_the_order_of_the_calls) {
  auto publisher = policy().publisher(trained.views()).value();
  auto follower = policy().follow().value();
  for (std::uint64_t version = 1; version < 200; version += 2) {
    auto first = publisher.publish(version);
    auto second = publisher.publish(version + 1);
    auto third = publisher.publish(version);
    auto code = code_of(third.stored);
    BOOST_TEST((code == errc::busy || code == errc::invalid_argument));
    first.stored.get();
    second.stored.get();
    BOOST_TEST(follower.load(numbered_tensors{}.targets()).get().version >= version + 1);
  }
}

BOOST_AUTO_TEST_CASE(a_publication_that_waits_can_be_cancelled_and_its_number_used_again) {
  auto publisher = policy().publisher(trained.views()).value();
  trained.fill(1);
  auto first = publisher.publish(1);
  auto second = publisher.publish(2);
  second.staged.cancel();
  first.stored.get();
  BOOST_TEST((code_of(second.staged) == errc::cancelled || second.staged.result().has_value()));
  auto outcome = code_of(second.stored);
  BOOST_TEST((outcome == errc::cancelled || outcome == errc::ok));
  publish(publisher, outcome == errc::ok ? 3 : 2);
  numbered_tensors loaded;
  auto version = policy().follow().value().load(loaded.targets()).get().version;
  BOOST_TEST(version == (outcome == errc::ok ? 3u : 2u));
  BOOST_TEST(loaded.are_of(version));
}

BOOST_AUTO_TEST_CASE(a_publication_that_fails_lets_the_next_one_begin) {
  auto there = policy("nowhere").publisher(trained.views()).value();
  BOOST_TEST((code_of(there.publish(1).stored) == errc::not_found));
  BOOST_TEST((code_of(there.publish(1).stored) == errc::not_found));
  numbered_tensors huge;
  huge.large.resize(20'000'000);
  auto publisher =
    policy()
      .publisher({tensor_view::dense("x", dtype::u8, {huge.large.size()}, std::span{huge.large})})
      .value();
  BOOST_TEST((code_of(publisher.publish(1).stored) == errc::no_space));
  BOOST_TEST((code_of(publisher.publish(1).stored) == errc::no_space));
}

BOOST_AUTO_TEST_CASE(tensors_that_have_moved_are_bound_again) {
  auto publisher = policy().publisher(trained.views()).value();
  publish(publisher, 1);
  numbered_tensors moved;
  BOOST_TEST(publisher.rebind(moved.views()).ok());
  moved.fill(2);
  publisher.publish(2).stored.get();
  numbered_tensors loaded;
  policy().follow().value().load(loaded.targets()).get();
  BOOST_TEST(loaded.are_of(2));
  auto others = moved.views();
  others.pop_back();
  BOOST_TEST((publisher.rebind(others).code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(rows_and_boxes_of_a_version_are_loaded) {
  auto publisher = policy().publisher(trained.views()).value();
  trained.fill(0);
  for (std::size_t i = 0; i < trained.large.size(); ++i)
    trained.large[i] = static_cast<std::uint8_t>(i / 300 + i % 300);
  publisher.publish(1).stored.get();
  std::vector<std::uint8_t> rows(2 * 300), box(3 * 4);
  auto follower = policy().follow().value();
  follower
    .load(
      {{tensor_view::dense("large", dtype::u8, {2, 300}, std::span{rows}), 7},
       {tensor_view::dense("large", dtype::u8, {3, 4}, std::span{box}), {}, {20, 100}}})
    .get();
  BOOST_TEST(rows[0] == 7);
  BOOST_TEST(rows[300 + 5] == 8 + 5);
  BOOST_TEST(box[0] == 120);
  BOOST_TEST(box[2 * 4 + 3] == 22 + 103);
}

BOOST_AUTO_TEST_CASE(a_load_that_does_not_fit_is_refused_and_the_next_version_is_told) {
  auto publisher = policy().publisher(trained.views()).value();
  auto follower = policy().follow().value();
  publish(publisher, 1);
  BOOST_TEST(follower.next(long_time).get().version == 1u);
  std::vector<float> other(7);
  auto wrong = follower.load({{tensor_view::dense("large", dtype::f32, {7}, std::span{other})}});
  BOOST_TEST((code_of(wrong) == errc::invalid_argument));
  publish(publisher, 2);
  BOOST_TEST(follower.next(long_time).get().version == 2u);
}

BOOST_AUTO_TEST_CASE(a_tensor_that_the_weights_lack_is_named_at_once) {
  publish(policy().publisher(trained.views()).value(), 1);
  std::vector<float> other(7);
  auto follower = policy().follow().value();
  auto lacking = follower.load({{tensor_view::dense("other", dtype::f32, {7}, std::span{other})}});
  BOOST_TEST((code_of(lacking) == errc::not_found));
  BOOST_TEST(lacking.result().error().detail().find("other") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_no_publisher_has_stored_is_no_weights) {
  auto follower = policy().follow().value();
  auto news = follower.next(long_time);
  remote.repository("fast").store("policy", trained.views()).get();
  BOOST_TEST((code_of(news) == errc::invalid_argument));
  BOOST_TEST((code_of(follower.next(long_time)) == errc::invalid_argument));
  BOOST_TEST((code_of(follower.load(trained.targets())) == errc::invalid_argument));
  publish(policy().publisher(trained.views()).value(), 1);
  BOOST_TEST(eventually([&] {
    auto again = follower.next(long_time);
    return again.result().has_value() && again.result()->version == 1;
  }));
}

BOOST_AUTO_TEST_CASE(a_group_without_providers_and_wrong_names_are_refused) {
  auto follower = policy("nowhere").follow().value();
  BOOST_TEST((code_of(follower.next(long_time)) == errc::not_found));
  BOOST_TEST((code_of(follower.next(long_time)) == errc::not_found));
  BOOST_TEST((code_of(follower.load(trained.targets())) == errc::not_found));
  BOOST_TEST((remote.weights("", "fast").follow().error().code() == errc::invalid_argument));
  BOOST_TEST((remote.weights("x", "").follow().error().code() == errc::invalid_argument));
  auto nameless = remote.weights("", "fast").publisher(trained.views());
  BOOST_TEST((nameless.error().code() == errc::invalid_argument));
  auto twice = trained.views();
  twice.push_back(twice.front());
  BOOST_TEST((policy().publisher(twice).error().code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(what_was_erased_cannot_be_loaded_and_what_follows_is_told) {
  auto publisher = policy().publisher(trained.views()).value();
  auto follower = policy().follow().value();
  publish(publisher, 1);
  BOOST_TEST(follower.next(long_time).get().version == 1u);
  policy().erase().get();
  BOOST_TEST((code_of(follower.load(trained.targets())) == errc::not_found));
  publish(publisher, 2);
  BOOST_TEST(follower.next(long_time).get().version == 2u);
}

BOOST_AUTO_TEST_CASE(a_call_that_is_cancelled_has_taken_no_version) {
  auto publisher = policy().publisher(trained.views()).value();
  auto follower = policy().follow().value();
  for (std::uint64_t version = 1; version <= 50; ++version) {
    auto given_up = follower.next(long_time);
    auto pending = publisher.publish(version);
    given_up.cancel();
    pending.stored.get();
    if (!given_up.result())
      BOOST_TEST(follower.next(long_time).get().version == version);
  }
}

// Runs that replace each other while the weights of the one before are being loaded.
BOOST_AUTO_TEST_CASE(what_comes_during_a_load_is_told_once) {
  auto follower = policy().follow().value();
  numbered_tensors loaded;
  publish(policy().publisher(trained.views()).value(), 1);
  BOOST_TEST(follower.next(long_time).get().version == 1u);
  for (std::uint64_t version = 2; version <= 60; ++version) {
    auto load = follower.load(loaded.targets(), long_time);
    auto publisher = policy().publisher(trained.views()).value();
    publish(publisher, version);
    auto had = load.get().version;
    BOOST_TEST(loaded.are_of(had));
    BOOST_TEST((had == version || had == version - 1));
    if (had != version)
      BOOST_TEST_REQUIRE(follower.next(long_time).get().version == version);
    if (version % 10 == 0)
      BOOST_TEST((code_of(follower.next(50ms)) == errc::deadline_exceeded));
  }
}

BOOST_AUTO_TEST_CASE(one_watch_is_parked_as_long_as_the_follower_lives) {
  std::optional follower{policy().follow().value()};
  BOOST_TEST(eventually([&] { return watches() == 1; }));
  auto waiting = follower->next(long_time);
  auto also = follower->next(long_time);
  BOOST_TEST(eventually([&] { return watches() == 1; }));
  follower.reset();
  BOOST_TEST((code_of(waiting) == errc::cancelled));
  BOOST_TEST((code_of(also) == errc::cancelled));
  BOOST_TEST(eventually([&] { return watches() == 0; }));
}

// A provider in memory begins to count its versions again, so the numbers are below.
BOOST_DATA_TEST_CASE(
  a_follower_goes_on_after_its_node_has_started_anew, data::make(groups), group) {
  auto follower = policy(group).follow().value();
  for (std::uint64_t version = 1; version <= 5; ++version)
    publish(policy(group).publisher(trained.views()).value(), version);
  while (follower.next(long_time).get().version != 5)
    ;
  auto waiting = follower.next(long_time);
  restart();
  // Its client connects to the new node by itself.
  publish(direct->weights("policy", group).publisher(trained.views()).value(), 6);
  BOOST_TEST(waiting.get().version == 6u);
  numbered_tensors loaded;
  BOOST_TEST(follower.load(loaded.targets()).get().version == 6u);
  BOOST_TEST(loaded.are_of(6));
}

BOOST_AUTO_TEST_CASE(a_follower_for_whose_watch_there_is_no_place_asks_now_and_then) {
  direct.reset();
  n.reset();
  settings.limits.watches_max = 1;
  n.emplace(node::embed(settings));
  direct.emplace(n->client());
  auto publisher = direct->weights("policy", "fast").publisher(trained.views()).value();
  auto c = client::connect(settings.node.listen.at(0));
  auto first = c.weights("policy", "fast").follow().value();
  BOOST_TEST_REQUIRE(eventually([&] { return watches() == 1; }));
  auto second = c.weights("policy", "fast").follow().value();
  for (std::uint64_t version : {1u, 2u}) {
    publish(publisher, version);
    BOOST_TEST(second.next(long_time).get().version == version);
    BOOST_TEST(first.next(long_time).get().version == version);
  }
}

BOOST_AUTO_TEST_CASE(a_late_call_says_what_keeps_the_follower_from_asking) {
  auto follower = policy().follow().value();
  BOOST_TEST(eventually([&] { return watches() == 1; }));
  direct.reset();
  n.reset();
  auto late = follower.next(1s);
  BOOST_TEST((code_of(late) == errc::deadline_exceeded));
  auto& why = late.result().error().detail();
  BOOST_TEST(why.find("policy") != std::string::npos, why);
  BOOST_TEST(why.find("n0.sock") != std::string::npos, why);
}

BOOST_AUTO_TEST_SUITE_END()
