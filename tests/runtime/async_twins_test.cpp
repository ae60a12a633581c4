// Clients and nodes that open, start and stop while the program goes on.
#include "three_providers.hpp"

#include <millrace/runtime/node/node.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/scripted_service.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

using namespace millrace;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_SUITE(async_twins)

BOOST_AUTO_TEST_CASE(a_client_opens_while_the_program_goes_on) {
  testing::scripted_service service{{testing::listed("p")}};
  using answer = testing::scripted_service::answer<actors::directory_request>;
  promise<answer> asked;
  service.on<actors::directory_request>(
    [asked](auto&, auto reply) { asked.set(std::move(reply)); });
  auto opening = client::open_async(service.address());
  auto reply = asked.get_future().get();
  BOOST_TEST(!opening.ready());
  actors::directory where;
  where.node = "n0";
  where.nodes = {{"n0", {service.address()}}};
  reply(where);
  BOOST_TEST(opening.get().nodes().size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_client_that_cannot_open_says_why) {
  config::settings settings;
  settings.client.connect_timeout_ms = 100;
  settings.client.request_timeout_ms = 1000;
  auto address = std::string{"unix:/tmp/millrace-nobody-listens.sock"};
  auto opened = client::open_async(address, settings).result();
  BOOST_REQUIRE(!opened);
  BOOST_TEST(opened.error().detail().find(address) != std::string::npos);
}

// The program drops the future, and with it the client, before the node has answered.
BOOST_AUTO_TEST_CASE(a_client_that_nobody_waits_for_ends) {
  testing::scripted_service service{{testing::listed("p")}};
  using answer = testing::scripted_service::answer<actors::directory_request>;
  promise<answer> asked;
  service.on<actors::directory_request>(
    [asked](auto&, auto reply) { asked.set(std::move(reply)); });
  std::optional opening{client::open_async(service.address())};
  auto reply = asked.get_future().get();
  opening.reset();
  actors::directory where;
  where.node = "n0";
  where.nodes = {{"n0", {service.address()}}};
  reply(where);
}

BOOST_AUTO_TEST_CASE(a_node_starts_and_stops_while_the_program_goes_on) {
  testing::three_providers disk;
  auto n = node::start_async(disk.settings).get();
  n->client().repository("kept").store("net", disk.tensors()).get();
  auto asked = client::connect(n->address());
  BOOST_TEST(n->stop_async().result().has_value());
  n.reset();
  BOOST_TEST(!asked.repository("kept").describe("net").result().has_value());
  // Its files are closed.
  auto again = node::start_async(disk.settings).get();
  BOOST_TEST(again->client().repository("kept").describe("net").result().has_value());
}

// Though the thread that made it, and asked it, lives on.
BOOST_AUTO_TEST_CASE(a_node_ends_on_another_thread) {
  testing::three_providers disk;
  auto n = node::embed(disk.settings);
  n.client().repository("kept").store("net", disk.tensors()).get();
  auto stopped = n.stop_async();
  BOOST_REQUIRE(stopped.wait_for(10s));
  BOOST_TEST(stopped.result().has_value());
}

BOOST_AUTO_TEST_CASE(a_client_ends_on_another_thread) {
  testing::three_providers disk;
  auto n = node::embed(disk.settings);
  auto c = client::connect(n.address());
  c.repository("kept").store("net", disk.tensors()).get();
  promise<void> ended;
  std::thread{[ended, last = std::optional{std::move(c)}]() mutable {
    last.reset();
    ended.set({});
  }}.detach();
  BOOST_TEST(ended.get_future().wait_for(10s));
}

BOOST_AUTO_TEST_CASE(what_a_node_repeats_ends_with_it_though_its_client_stays) {
  testing::three_providers disk;
  auto n = node::start_async(disk.settings).get();
  auto kept = n->client(); // and with it the loop
  struct calls {
    std::atomic<int> count = 0;
    promise<void> third;
  };
  auto seen = std::make_shared<calls>();
  n->repeat(1, [seen] {
    if (++seen->count == 3)
      seen->third.set({});
  });
  BOOST_REQUIRE(seen->third.get_future().wait_for(60s));
  n->stop();
  // One that had begun has forgotten the function when it ends.
  BOOST_TEST(testing::eventually([&] { return seen.use_count() == 1; }));
}

// So a watchdog that is fed by it sees a loop that is stuck.
BOOST_AUTO_TEST_CASE(nothing_is_repeated_while_the_loop_stands_still) {
  testing::three_providers disk;
  auto n = node::embed(disk.settings);
  auto beats = std::make_shared<std::atomic<int>>(0);
  n.repeat(1, [beats] { ++*beats; });
  BOOST_REQUIRE(testing::eventually([&] { return *beats > 0; }));
  promise<void> stands, goes_on;
  n.repeat(1, [stands, until = goes_on.get_future(), first = true]() mutable {
    if (!std::exchange(first, false))
      return;
    stands.set({});
    until.wait_for(60s);
  });
  BOOST_REQUIRE(stands.get_future().wait_for(60s));
  auto before = beats->load();
  std::this_thread::sleep_for(50ms);
  BOOST_TEST(beats->load() == before);
  goes_on.set({});
  BOOST_TEST(testing::eventually([&] { return *beats > before; }));
}

BOOST_AUTO_TEST_CASE(a_node_that_cannot_start_says_why) {
  testing::three_providers disk;
  auto first = node::start_async(disk.settings).get();
  auto second = node::start_async(disk.settings).result();
  BOOST_REQUIRE(!second);
  BOOST_TEST((second.error().code() != errc::internal), second.error().to_string());
}

BOOST_AUTO_TEST_SUITE_END()
