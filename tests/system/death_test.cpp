// Kills processes. The others go on, and nothing is lost but the work of the dead.
#include <millrace/net/network_options.hpp>
#include <millrace/runtime/client/client.hpp>
#include <millrace/tests/support/service.hpp>
#include <millrace/tests/system/sample.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <signal.h>

using namespace millrace;
using namespace millrace::testing;
using nlohmann::json;
using namespace std::chrono_literals;

namespace {

json provider(const service& s) {
  auto status = s.command({"status", "--json"});
  BOOST_TEST_REQUIRE(status.code == 0, status.err);
  return json::parse(status.out).at("nodes").at(0).at("providers").at(0);
}

std::vector<std::string> peer(const service& s, const std::string& verb, int mib, int seed) {
  return {MILLRACE_PEER, s.address(), verb, "m", std::to_string(mib), std::to_string(seed)};
}

// Lists shared memory without the directories that other tests make there at the same time.
std::string shared_memory() {
  std::string names;
  for (auto& entry : std::filesystem::directory_iterator{"/dev/shm"})
    if (entry.is_regular_file())
      names += entry.path().string() + "\n";
  return names;
}

// A client that is stopped in the middle of its store.
struct stalled_store {
  child_process client;

  stalled_store(const service& s, int mib, int seed) : client{peer(s, "stall", mib, seed)} {
    BOOST_TEST_REQUIRE(client.wait_stopped(), client.err());
    BOOST_TEST_REQUIRE(provider(s).at("in_flight") == 1);
  }
};

} // namespace

BOOST_AUTO_TEST_SUITE(killed_processes)

BOOST_AUTO_TEST_CASE(a_client_killed_in_mid_store_leaves_nothing_behind) {
  scratch dir;
  service s{dir};
  auto empty = provider(s).at("used_bytes");
  BOOST_TEST(run_program(peer(s, "store", 1, 1)).code == 0);
  auto before = provider(s);
  auto descriptors = s.process().descriptors();
  auto shared = shared_memory();
  {
    stalled_store stalled{s, 48, 2};
    BOOST_TEST(provider(s).at("used_bytes") > 40 << 20);
    stalled.client.signal(SIGKILL);
    BOOST_TEST(stalled.client.wait() == 128 + SIGKILL);
  }
  // The same name, at once, though there is no room for two of them.
  auto again = run_program(peer(s, "store", 48, 3));
  BOOST_TEST(again.code == 0, again.err);
  BOOST_TEST(run_program(peer(s, "load", 48, 3)).out == "same verified\n");
  BOOST_TEST(s.command({"models", "rm", "m"}).code == 0);
  BOOST_TEST(eventually([&] { return provider(s).at("used_bytes") == empty; }));
  BOOST_TEST(provider(s).at("in_flight") == 0);
  BOOST_TEST(
    // The service may still have had a connection that had just ended.
    eventually([&] { return s.process().descriptors() <= descriptors; }),
    s.process().descriptors() << " descriptors, before " << descriptors);
  BOOST_TEST(shared_memory() == shared);
  BOOST_TEST(s.stop() == 0);
}

BOOST_AUTO_TEST_CASE(a_client_stopped_in_many_stores_keeps_nobody_waiting) {
  scratch dir;
  service s{
    dir,
    {.providers = "[{ name: fast, capacity: 256MiB }]",
     .more = "limits: { stores_max: 4 }\nchannel: { peer_timeout: 1h }\n"}};
  child_process stopped{peer(s, "flood", 16, 1)};
  BOOST_TEST_REQUIRE(stopped.wait_stopped(), stopped.err());
  BOOST_TEST(provider(s).at("in_flight") > 0);
  BOOST_TEST(provider(s).at("queued") > 0);
  for (int seed = 2; seed < 5; ++seed) {
    auto neighbour = run_program(peer(s, "store", 1, seed));
    BOOST_TEST(neighbour.code == 0, neighbour.err);
  }
  BOOST_TEST(run_program(peer(s, "load", 1, 4)).out == "same verified\n");
  BOOST_TEST(provider(s).at("in_flight") > 0);
}

BOOST_AUTO_TEST_CASE(clients_killed_at_random_leave_the_last_whole_version) {
  scratch dir;
  service s{dir};
  for (int seed = 1; seed <= 6; ++seed) {
    child_process client{peer(s, "churn", 12, seed)};
    for (int i = 0; i < seed; ++i)
      client.read_line();
    client.signal(SIGKILL);
    client.wait();
    BOOST_TEST(run_program(peer(s, "load", 12, seed)).out == "same verified\n");
  }
  BOOST_TEST(eventually([&] {
    auto p = provider(s);
    return p.at("in_flight") == 0 && p.at("used_bytes") < 13 << 20;
  }));
}

BOOST_AUTO_TEST_CASE(a_killed_service_is_named_and_its_successor_found_by_the_same_client) {
  scratch dir;
  service s{dir, {.providers = "[{ name: fast, capacity: 512MiB }]"}};
  auto repo = client::connect(s.address()).repository();
  auto m = sample::of_mib(8).fill(1);
  std::vector<future<receipt>> running;
  for (int i = 0; i < 48; ++i)
    running.push_back(repo.store("m" + std::to_string(i), m.views));
  s.kill();
  std::size_t failed = 0;
  for (auto& store : running) {
    auto& outcome = store.result();
    if (outcome)
      continue;
    ++failed;
    auto code = outcome.error().code();
    BOOST_TEST((code == errc::peer_lost || code == errc::unavailable), outcome.error().to_string());
    BOOST_TEST(
      (outcome.error().detail().find(s.socket()) != std::string::npos),
      outcome.error().to_string());
  }
  BOOST_TEST(failed > 0u);
  s.start();
  // The first attempts may fall into the pause between two attempts to connect.
  result<receipt> stored = fail(errc::internal, "");
  BOOST_TEST(eventually([&] { return (stored = repo.store("m", m.views).result()).has_value(); }));
  BOOST_TEST(run_program(peer(s, "load", 8, 1)).out == "same verified\n");
}

BOOST_AUTO_TEST_CASE(a_durable_service_killed_in_many_stores_has_whole_models_only) {
  scratch dir;
  service s{
    dir,
    {.providers = "[{ name: kept, bucket: rocksdb, capacity: 96MiB, window: 1MiB, path: " +
       (dir / "kept") + " }]"}};
  for (int seed = 1; seed <= 3; ++seed) {
    child_process client{peer(s, "churn", 8, seed)};
    client.read_line();
    client.read_line();
    s.kill();
    BOOST_TEST(client.wait() == 1);
    BOOST_TEST(lines_of(client.err()) == 1u, client.err());
    s.start();
    BOOST_TEST(run_program(peer(s, "load", 8, seed)).out == "same verified\n");
  }
  BOOST_TEST(s.stop() == 0);
}

// What the stopped service finds in its sockets: first what the second client asked, the last store
// included, and then a store that the first client gave up before.
// By its time, or since the service is silent: then the connection is closed.
BOOST_DATA_TEST_CASE(
  a_store_given_up_while_the_service_stood_still_replaces_no_later_one,
  boost::unit_test::data::make({false, true}), closes) {
  config::settings impatient;
  auto& channel = impatient.options.edit<net::network_options>().channel;
  channel.heartbeat_ms = 100;
  channel.peer_timeout_ms = closes ? 500 : 60'000;
  scratch dir;
  service s{dir, {.more = "channel: { peer_timeout: 1h }\n"}};
  auto first = client::open(s.address(), impatient).value().repository();
  auto second = client::connect(s.address()).repository();
  auto old = sample{1, 1}.fill(1), given_up = sample{1, 1}.fill(2), last = sample{1, 1}.fill(3);
  // Both are connected, and few bytes travel in the request.
  BOOST_TEST(first.store("m", old.views).get().driver == "eager");
  BOOST_TEST(second.describe("m").get().provider == "fast");
  s.process().signal(SIGSTOP);
  BOOST_TEST_REQUIRE(s.process().wait_stopped());
  auto before = second.list();
  auto late = first.store("m", given_up.views, {.timeout = closes ? 60s : 500ms}).result();
  BOOST_TEST_REQUIRE(!late.has_value());
  auto why = closes ? errc::peer_lost : errc::deadline_exceeded;
  BOOST_TEST((late.error().code() == why), late.error().to_string());
  auto stored = second.store("m", last.views);
  s.process().signal(SIGCONT);
  BOOST_TEST(before.result().has_value());
  BOOST_TEST_REQUIRE(stored.result().has_value());
  // The service has answered everything that the first client asked before.
  BOOST_TEST(eventually([&] { return first.list().result().has_value(); }));
  sample found{1, 1};
  BOOST_TEST(second.load("m", {{found.views.at(0)}}).result().has_value());
  BOOST_TEST((found.bytes == last.bytes));
}

BOOST_AUTO_TEST_CASE(a_service_that_is_told_to_stop_finishes_what_runs) {
  scratch dir;
  service s{dir, {.more = "limits: { shutdown_timeout: 1m }\n"}};
  stalled_store stalled{s, 48, 5};
  s.process().signal(SIGTERM);
  // No client is let in from then on.
  BOOST_TEST(eventually([&] { return s.command({"status"}).code == 1; }));
  stalled.client.signal(SIGCONT);
  BOOST_TEST(stalled.client.wait() == 0, stalled.client.err());
  BOOST_TEST(stalled.client.out().starts_with("stored "), stalled.client.out());
  BOOST_TEST(s.process().wait() == 0);
  BOOST_TEST(!std::filesystem::exists(s.socket()));
}

BOOST_AUTO_TEST_CASE(a_service_that_is_told_to_stop_does_not_wait_for_idle_clients) {
  scratch dir;
  service s{dir};
  auto idle = client::connect(s.address());
  BOOST_TEST(s.stop() == 0);
  auto refused = idle.repository().list().result();
  BOOST_TEST_REQUIRE(!refused.has_value());
  // Asked while it still counts as connected, or when it is to be connected again.
  auto says = [&](const std::string& words) {
    return refused.error().detail().find(words) != std::string::npos;
  };
  BOOST_TEST((says(s.socket()) || says("peer n0 ")), refused.error().to_string());
}

BOOST_AUTO_TEST_SUITE_END()
