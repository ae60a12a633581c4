// Waits for newer versions and later steps through the public API: at a node in this process,
// through its socket, and while the providers of a group change.
#include "nodes_of_one_file.hpp"
#include "three_providers.hpp"

#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/process.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace {

constexpr auto long_time = 60s;
const std::vector<std::string> groups{"fast", "kept", "pool"};

struct served : three_providers {
  std::optional<node> n{node::embed(settings)};
  std::optional<client> direct{n->client()};
  client remote = client::connect(settings.node.listen.at(0));

  client& by(bool over_socket) { return over_socket ? remote : *direct; }

  std::uint64_t publish(const std::string& group, const std::string& model) {
    return direct->repository(group).store(model, tensors()).get().version;
  }

  std::uint64_t watches(const std::string& provider) {
    auto nodes = direct->status().get();
    for (auto& p : nodes.at(0)->providers)
      if (p.name == provider)
        return p.store.watches + p.checkpoints.watches;
    return 0;
  }
  bool has_watches(const std::string& provider, std::uint64_t count) {
    return eventually([&] { return watches(provider) == count; });
  }
  void stop() {
    direct.reset();
    n.reset();
  }
};

template <class T>
bool is_ready(const future<T>& f) {
  return f.wait_for(30s);
}

// Each engine, of a node or a client, has one thread of this name while it lives.
std::ptrdiff_t engines_of_this_process() {
  return std::ranges::count_if(
    std::filesystem::directory_iterator{"/proc/self/task"}, [](auto& thread) {
      std::string name;
      std::getline(std::ifstream{thread.path() / "comm"}, name);
      return name == "caf.clock";
    });
}

checkpoint_options rank_of_two(std::uint32_t rank) {
  checkpoint_options o;
  o.model = "trained";
  o.rank = rank;
  o.world_size = 2;
  o.timeout = 30s;
  return o;
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(watches_end_to_end, served)

BOOST_DATA_TEST_CASE(
  what_is_announced_can_be_loaded_at_once, data::make({false, true}) * data::make(groups),
  over_socket, group) {
  auto repo = by(over_socket).repository(group);
  std::vector<std::byte> target(bytes.size());
  std::uint64_t known = 0;
  for (int i = 1; i <= 5; ++i) {
    auto newer = repo.newer("m", known, long_time);
    BOOST_TEST_REQUIRE(has_watches(group, 1));
    BOOST_TEST(!newer.ready());
    bytes.assign(bytes.size(), static_cast<std::byte>(i));
    auto version = publish(group, "m");
    BOOST_TEST_REQUIRE(is_ready(newer));
    auto record = newer.get();
    BOOST_TEST(record.version == version);
    BOOST_TEST(record.spec.name == "m");
    BOOST_TEST(record.digests.empty());
    tensor_view into{{"w", dtype::u8, {target.size()}}, target.data(), {}};
    BOOST_TEST(repo.load("m", {{into, {}}}).get().version == version);
    BOOST_TEST((target == bytes));
    known = version;
  }
  BOOST_TEST(has_watches(group, 0));
}

BOOST_DATA_TEST_CASE(what_is_there_already_is_returned, data::make({false, true}), over_socket) {
  auto version = publish("fast", "m");
  auto repo = by(over_socket).repository("fast");
  BOOST_TEST(repo.newer("m", 0, long_time).get().version == version);
  BOOST_TEST(repo.newer("m", version - 1, long_time).get().version == version);
  BOOST_TEST(has_watches("fast", 0));
}

// The provider of some is asked when their time is over: they end while they begin.
BOOST_DATA_TEST_CASE(
  watches_that_end_at_once_leave_nothing, data::make({false, true}), over_socket) {
  auto repo = by(over_socket).repository("fast");
  std::vector<future<model_record>> short_ones;
  for (int i = 0; i < 200; ++i)
    short_ones.push_back(repo.newer("m", 0, 1ms));
  for (auto& one : short_ones) {
    BOOST_TEST_REQUIRE(is_ready(one));
    BOOST_TEST((one.result().error().code() == errc::deadline_exceeded));
  }
  BOOST_TEST(has_watches("fast", 0));
}

BOOST_DATA_TEST_CASE(
  a_model_that_is_erased_is_awaited_again, data::make({false, true}), over_socket) {
  auto version = publish("fast", "m");
  auto newer = by(over_socket).repository("fast").newer("m", version, long_time);
  BOOST_TEST_REQUIRE(has_watches("fast", 1));
  direct->repository("fast").erase("m").get();
  BOOST_TEST(!newer.ready());
  auto next = publish("fast", "m");
  BOOST_TEST_REQUIRE(is_ready(newer));
  BOOST_TEST(newer.get().version == next);
}

// More than the connection takes requests, and than one process may have under way.
BOOST_AUTO_TEST_CASE(thousands_of_watches_leave_their_client_free_to_ask) {
  constexpr std::size_t count = 4000, names = 10;
  auto name_of = [](std::size_t i) { return "m" + std::to_string(i % names); };
  auto repo = remote.repository("fast");
  std::vector<future<model_record>> all;
  for (std::size_t i = 0; i < count; ++i)
    all.push_back(repo.newer(name_of(i), 0, long_time));
  BOOST_TEST_REQUIRE(has_watches("fast", count));
  for (std::size_t i = 0; i < count; ++i)
    if (i % 2 == 1)
      all[i].cancel();
  BOOST_TEST_REQUIRE(has_watches("fast", count / 2));
  for (std::size_t i = 0; i < names; i += 2)
    repo.store(name_of(i), tensors()).get();
  for (std::size_t i = 0; i < count; i += 2) {
    BOOST_TEST_REQUIRE(is_ready(all[i]));
    BOOST_TEST_REQUIRE(all[i].result().has_value());
    BOOST_TEST(all[i].result()->spec.name == name_of(i));
  }
  BOOST_TEST(has_watches("fast", 0));
}

BOOST_DATA_TEST_CASE(cancelling_takes_the_watch_back, data::make({false, true}), over_socket) {
  auto& c = by(over_socket);
  auto model = c.repository("pool").newer("m", 0, long_time);
  auto step = c.checkpoints("pool").newer("trained", {}, long_time);
  auto stays = c.repository("pool").newer("other", 0, long_time);
  BOOST_TEST_REQUIRE(has_watches("pool", 3));
  model.cancel();
  step.cancel();
  BOOST_TEST((model.result().error().code() == errc::cancelled));
  BOOST_TEST((step.result().error().code() == errc::cancelled));
  BOOST_TEST(has_watches("pool", 1));
  stays.cancel();
  BOOST_TEST(has_watches("pool", 0));
}

BOOST_DATA_TEST_CASE(a_wait_ends_at_its_deadline, data::make({false, true}), over_socket) {
  auto& c = by(over_socket);
  auto model = c.repository("fast").newer("m", 0, 300ms);
  auto step = c.checkpoints("pool").newer("trained", {}, 300ms);
  BOOST_TEST_REQUIRE(is_ready(model));
  BOOST_TEST_REQUIRE(is_ready(step));
  BOOST_TEST((model.result().error().code() == errc::deadline_exceeded));
  BOOST_TEST((step.result().error().code() == errc::deadline_exceeded));
  BOOST_TEST(has_watches("fast", 0));
  BOOST_TEST(has_watches("pool", 0));
}

BOOST_DATA_TEST_CASE(
  watches_end_with_their_client_and_keep_nothing_of_it, data::make({false, true}), over_socket) {
  auto are_there = [](std::ptrdiff_t engines) {
    return eventually([engines] { return engines_of_this_process() == engines; });
  };
  BOOST_TEST_REQUIRE(are_there(2)); // of the node, and of one client
  std::optional<client> c{over_socket ? client::connect(settings.node.listen.at(0)) : n->client()};
  auto model = c->repository("pool").newer("m", 0, 1h);
  auto step = c->checkpoints("pool").newer("trained", {}, 1h);
  BOOST_TEST_REQUIRE(has_watches("pool", 2));
  auto connections = [&] { return direct->status().get().at(0)->connections; };
  BOOST_TEST(connections() == (over_socket ? 2u : 1u));
  BOOST_TEST_REQUIRE(are_there(over_socket ? 3 : 2));
  c.reset();
  BOOST_TEST_REQUIRE(is_ready(model));
  BOOST_TEST_REQUIRE(is_ready(step));
  BOOST_TEST((model.result().error().code() == errc::cancelled));
  BOOST_TEST((step.result().error().code() == errc::cancelled));
  BOOST_TEST(has_watches("pool", 0));
  BOOST_TEST(eventually([&] { return connections() == 1u; }));
  BOOST_TEST(are_there(2));
}

BOOST_AUTO_TEST_CASE(watches_end_with_their_node) {
  auto near = direct->repository("fast").newer("m", 0, long_time);
  auto far = remote.repository("fast").newer("m", 0, long_time);
  BOOST_TEST_REQUIRE(has_watches("fast", 2));
  // It is parked while the request for news of the first one waits.
  auto later = direct->repository("fast").newer("n", 0, long_time);
  BOOST_TEST_REQUIRE(has_watches("fast", 3));
  auto step = direct->checkpoints("pool").newer("trained", {}, 1h);
  BOOST_TEST_REQUIRE(has_watches("pool", 1));
  // The requests for news would wait for longer.
  BOOST_TEST_REQUIRE(is_ready(n->stop_async()));
  for (auto* one : {&near, &later}) {
    BOOST_TEST_REQUIRE(is_ready(*one));
    BOOST_TEST((one->result().error().code() == errc::unavailable));
    BOOST_TEST(one->result().error().detail().find("shutting down") != std::string::npos);
  }
  BOOST_TEST_REQUIRE(is_ready(step));
  BOOST_TEST((step.result().error().code() == errc::unavailable));
  BOOST_TEST_REQUIRE(is_ready(far));
  // Its connection was closed, with the reason.
  auto& why = far.result().error();
  BOOST_TEST((why.code() == errc::peer_lost || why.code() == errc::unavailable), why.to_string());
  BOOST_TEST(why.to_string().find("unavailable") != std::string::npos, why.to_string());
  // No storage stays open until the watches would have ended, although clients are left.
  BOOST_CHECK_NO_THROW(node::embed(settings));
}

// Both clients are of the node's own process, which no share binds.
BOOST_AUTO_TEST_CASE(more_watches_than_the_provider_has_places_are_refused_by_the_key) {
  stop();
  settings.limits.watches_max = 1;
  n.emplace(node::embed(settings));
  direct.emplace(n->client());
  auto c = client::connect(settings.node.listen.at(0));
  auto first = c.repository("fast").newer("m", 0, long_time);
  BOOST_TEST_REQUIRE(has_watches("fast", 1));
  auto second = c.repository("fast").newer("m", 0, long_time);
  BOOST_TEST_REQUIRE(is_ready(second));
  BOOST_TEST((second.result().error().code() == errc::busy));
  BOOST_TEST(second.result().error().detail().find("limits.watches_max") != std::string::npos);
  publish("fast", "m");
  BOOST_TEST(is_ready(first));
  BOOST_TEST(first.result().has_value());
}

BOOST_DATA_TEST_CASE(
  a_step_is_awaited_until_all_ranks_have_it, data::make({false, true}), over_socket) {
  auto checkpoints = by(over_socket).checkpoints();
  auto any = checkpoints.newer("trained", {}, long_time);
  auto later = checkpoints.newer("trained", 1, long_time);
  BOOST_TEST_REQUIRE(has_watches("pool", 2));
  std::vector<checkpointer> ranks;
  for (std::uint32_t rank : {0u, 1u})
    ranks.push_back(remote.checkpointer(rank_of_two(rank), tensors()).get());
  ranks[0].save(1).durable.get();
  BOOST_TEST(!any.ready());
  ranks[1].save(1).durable.get();
  BOOST_TEST_REQUIRE(is_ready(any));
  BOOST_TEST((any.get().complete_steps == std::vector<std::uint64_t>{1}));
  BOOST_TEST(!later.ready());
  for (auto& rank : ranks)
    rank.save(2).durable.get();
  BOOST_TEST_REQUIRE(is_ready(later));
  BOOST_TEST(later.get().complete_steps.back() == 2u);
  BOOST_TEST(checkpoints.newer("trained", 1, long_time).get().complete_steps.back() == 2u);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(watches_of_a_changing_group)

BOOST_AUTO_TEST_CASE(a_watch_hears_of_a_version_wherever_its_name_is_placed_later) {
  nodes_of_one_file c;
  c.start({{"a"}}, "a");
  auto old_client = c.with({{"a"}});
  std::vector<future<model_record>> waiting;
  std::vector<std::uint64_t> known;
  constexpr int models = 16;
  for (int i = 0; i < models; ++i) {
    auto stored = store_number(old_client.repository(), model_name(i), 1);
    BOOST_TEST_REQUIRE(stored.has_value(), why(stored));
    known.push_back(stored->version);
    waiting.push_back(old_client.repository().newer(model_name(i), known.back(), long_time));
  }
  auto all_parked = [&] {
    return old_client.status().get().at(0)->providers.at(0).store.watches == models;
  };
  BOOST_TEST_REQUIRE(eventually(all_parked));
  // A second provider takes about half of the names.
  provider_list both{{"a"}, {"b"}};
  c.start(both, "b");
  auto new_client = c.with(both);
  bool moved = false;
  for (int i = 0; i < models; ++i) {
    auto stored = store_number(new_client.repository(), model_name(i), 2);
    BOOST_TEST_REQUIRE(stored.has_value(), why(stored));
    moved |= stored->provider == "b";
    // Numbers rise whichever provider takes the version.
    BOOST_TEST(stored->version > known[i]);
    BOOST_TEST_REQUIRE(is_ready(waiting[i]));
    auto& newer = waiting[i].result();
    BOOST_TEST_REQUIRE(newer.has_value(), why(newer));
    BOOST_TEST(newer->version == stored->version);
    // One that begins to wait now, with the number of the other provider.
    BOOST_TEST(
      old_client.repository().newer(model_name(i), known[i], long_time).get().version ==
      stored->version);
  }
  BOOST_TEST(moved);
}

BOOST_AUTO_TEST_SUITE_END()
