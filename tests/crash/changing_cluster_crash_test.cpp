// Kills nodes and clients while the list of providers changes. What was replaced or erased does not
// come back, and what was acknowledged is found.
#include <millrace/tests/support/changing_cluster.hpp>
#include <millrace/tests/support/dice.hpp>
#include <millrace/tests/support/process.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <sstream>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
namespace data = boost::unit_test::data;

namespace {

constexpr int names = 10;

struct world {
  explicit world(std::uint64_t seed) : random(seed) {
    for (auto* rests : {"a", "b", "c"})
      start(beliefs[1], rests);
    connect();
  }

  // Clients wait before they connect to a node anew. New ones do not.
  void connect() {
    clients.clear();
    for (auto& belief : beliefs)
      clients.push_back(place.with(belief));
  }

  void start(const provider_list& belief, const std::string& rests) {
    auto file = dir.write("on-" + rests + ".yaml", place.text(belief));
    nodes[rests].emplace(
      std::vector<std::string>{MILLRACE_PROGRAM, "serve", "-c", file, "--node", "on-" + rests});
    nodes[rests]->read_line();
  }
  void kill(const std::string& rests) {
    nodes[rests]->signal(SIGKILL);
    nodes[rests]->wait();
  }
  // Starts a node that was killed with a file that lists it.
  void start_with_any(const std::string& rests) {
    auto lists = [&](const provider_list& belief) {
      return std::ranges::count(belief, rests, &listed_provider::rests) > 0;
    };
    auto* belief = &random.one_of(beliefs);
    while (!lists(*belief))
      belief = &random.one_of(beliefs);
    start(*belief, rests);
    connect();
  }
  void pause(std::uint64_t us_max) {
    std::this_thread::sleep_for(std::chrono::microseconds{random.below(us_max)});
  }

  // Compares every name with what it must be.
  void look(const std::string& when) {
    auto r = random.one_of(clients).repository();
    for (int i = 0; i < names; ++i) {
      auto value = load_number(r, model_name(i));
      BOOST_TEST(
        known[i].loaded(value),
        when << ", " << model_name(i) << ", expected " << known[i].text() << ": "
             << (value ? std::to_string(*value) : value.error().to_string()));
      found += value.has_value();
    }
  }

  // With all providers there again, every name has an answer.
  void look_at_the_end() {
    for (auto* rests : {"a", "b", "c"}) {
      kill(rests);
      start(beliefs[1], rests);
    }
    auto r = place.with(beliefs[1]).repository();
    for (auto& [i, expected] : known) {
      auto value = load_number(r, model_name(i));
      BOOST_TEST(
        expected.is_found(value),
        model_name(i) << ", expected " << expected.text() << ": "
                      << (value ? std::to_string(*value) : value.error().to_string()));
    }
  }

  scratch dir;
  cluster_place place{dir.path.string(), {{"b", "pmem"}}};
  dice random;
  std::map<std::string, std::optional<child_process>> nodes;
  std::vector<client> clients;
  std::map<int, expected_number> known;
  int found = 0;
};

} // namespace

BOOST_AUTO_TEST_SUITE(changing_cluster_crash)

BOOST_DATA_TEST_CASE(nodes_are_killed_amid_stores_and_erasures, data::xrange(3), seed) {
  world w{static_cast<std::uint64_t>(seed)};
  for (std::uint64_t round = 1; round <= 40; ++round) {
    auto when = "seed " + std::to_string(seed) + ", round " + std::to_string(round);
    std::string victim{"abc"[w.random.below(3)]};
    std::vector<std::thread> changes;
    std::atomic<int> wrong = 0;
    for (int i = 0; i < names; i += 3)
      changes.emplace_back([&wrong, &expected = w.known[i], name = model_name(i),
                            value = round * 100, r = w.random.one_of(w.clients).repository(),
                            erases = w.random.percent(25)]() mutable {
        if (erases)
          wrong += !expected.erased(r.erase(name).result());
        else
          wrong += !expected.stored(value, store_number(r, name, value));
      });
    w.pause(8000);
    w.kill(victim);
    for (auto& change : changes)
      change.join();
    BOOST_TEST(wrong == 0, when);
    w.start_with_any(victim);
    w.look(when);
  }
  BOOST_TEST(w.found > 40);
  w.look_at_the_end();
}

BOOST_DATA_TEST_CASE(clients_are_killed_amid_stores_and_erasures, data::xrange(2), seed) {
  world w{static_cast<std::uint64_t>(seed) + 100};
  std::uint64_t cut = 0;
  for (std::uint64_t round = 1; round <= 40; ++round) {
    auto when = "seed " + std::to_string(seed) + ", round " + std::to_string(round);
    std::string changed{"abc"[w.random.below(3)]};
    w.kill(changed);
    w.start_with_any(changed);
    auto file = w.dir.write("client.yaml", w.place.text(w.random.one_of(beliefs)));
    auto first = w.random.percent(25) ? 0 : round * 100;
    child_process storer{{NUMBER_STORER, file, std::to_string(names), std::to_string(first)}};
    auto begins = storer.read_line(); // a slow machine takes longer than the pause to start it
    w.pause(60'000);
    storer.signal(SIGKILL);
    storer.wait();
    for (int i = 0; i < names; ++i)
      w.known[i].tried(first == 0 ? 0 : first + static_cast<std::uint64_t>(i));
    std::istringstream acknowledged{storer.out().substr(begins.size())};
    int done = 0;
    for (int i = 0; acknowledged >> i; ++done)
      w.known[i].is(first == 0 ? 0 : first + static_cast<std::uint64_t>(i));
    cut += done > 0 && done < names;
    w.look(when);
  }
  BOOST_TEST(cut > 1u); // on a busy machine few clients come so far before they are killed
  BOOST_TEST(w.found > 40);
  w.look_at_the_end();
}

BOOST_AUTO_TEST_SUITE_END()
