// Tests name lookups: they run beside the loop, are shared, and have bounds in number and time.
#include "channel_support.hpp"

#include <millrace/net/socket/resolver.hpp>

#include <atomic>
#include <thread>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;
using namespace std::chrono_literals;

namespace {

using addresses = std::vector<socket_address>;

/// A lookup that waits until it is let go, and counts.
struct held_lookup {
  resolver::lookup ask() {
    return [this](const std::string& host) -> result<addresses> {
      ++asked;
      ++running;
      std::unique_lock lock{mutex};
      changed.wait_for(lock, generous, [this] { return released; });
      --running;
      if (host == "unknown")
        return fail(errc::unavailable, "no such name");
      return addresses{*socket_address::parse("10.1.2.3:0")};
    };
  }
  void release() {
    std::lock_guard guard{mutex};
    released = true;
    changed.notify_all();
  }
  std::atomic<int> asked = 0, running = 0;
  std::mutex mutex;
  std::condition_variable changed;
  bool released = false;
};

struct fixture {
  ~fixture() {
    held.release();
    while (held.running > 0)
      std::this_thread::sleep_for(1ms);
    loop->stop();
  }
  future<addresses> ask(
    const std::string& host, steady_clock::duration within = generous, std::uint16_t port = 77) {
    promise<addresses> p;
    names->resolve(
      loop, host, port, steady_clock::now() + within, [p](auto found) { p.set(found); });
    return p.get_future();
  }
  bool eventually(const std::function<bool()>& condition) {
    auto deadline = steady_clock::now() + generous;
    while (!condition() && steady_clock::now() < deadline)
      std::this_thread::sleep_for(1ms);
    return condition();
  }

  held_lookup held;
  std::shared_ptr<io_loop> loop = make_loop();
  std::shared_ptr<resolver> names =
    resolver::make(held.ask(), {.threads_max = 2, .lookups_max = 4, .addresses_max = 3});
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(resolvers, fixture)

BOOST_AUTO_TEST_CASE(numeric_addresses_ask_nobody) {
  BOOST_TEST(ask("127.0.0.1").get().at(0).to_string() == "127.0.0.1:77");
  BOOST_TEST(ask("::1").get().at(0).to_string() == "[::1]:77");
  BOOST_TEST(held.asked == 0);
}

BOOST_AUTO_TEST_CASE(requests_for_one_name_share_a_lookup) {
  std::vector<future<addresses>> all;
  for (std::uint16_t port = 1; port <= 20; ++port)
    all.push_back(ask("node", generous, port));
  held.release();
  for (std::uint16_t port = 1; port <= 20; ++port)
    BOOST_TEST(all[port - 1].get().at(0).to_string() == "10.1.2.3:" + std::to_string(port));
  BOOST_TEST(held.asked == 1);
}

BOOST_AUTO_TEST_CASE(lookups_beyond_the_threads_wait_and_beyond_the_bound_are_busy) {
  std::vector<future<addresses>> all;
  for (auto* name : {"a", "b", "c", "d"})
    all.push_back(ask(name));
  auto refused = ask("e").result();
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::busy));
  BOOST_TEST(eventually([&] { return held.running == 2; }));
  BOOST_TEST(held.asked == 2);
  held.release();
  for (auto& f : all)
    BOOST_TEST(f.get().size() == 1u);
  BOOST_TEST(held.asked == 4);
}

BOOST_AUTO_TEST_CASE(a_lookup_that_hangs_costs_the_deadline_and_not_the_loop) {
  auto hung = ask("hung", 20ms);
  promise<int> passed;
  loop->post([passed] { passed.set(1); });
  BOOST_TEST(passed.get_future().get() == 1);
  auto late = hung.result();
  BOOST_REQUIRE(!late);
  BOOST_TEST((late.error().code() == errc::deadline_exceeded));
  BOOST_TEST(late.error().detail().find("hung") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_unknown_name_is_said_and_asked_again_the_next_time) {
  held.release();
  for (int i = 1; i <= 2; ++i) {
    auto found = ask("unknown").result();
    BOOST_REQUIRE(!found);
    BOOST_TEST((found.error().code() == errc::unavailable));
    BOOST_TEST(held.asked == i);
  }
}

BOOST_AUTO_TEST_CASE(the_system_knows_localhost_and_not_nonsense) {
  names = resolver::shared();
  auto found = ask("localhost").get();
  BOOST_REQUIRE(!found.empty());
  for (auto& a : found)
    BOOST_TEST((a.host() == "127.0.0.1" || a.host() == "::1"));
  BOOST_TEST(!ask("no-such-name.invalid").result().has_value());
}

BOOST_AUTO_TEST_CASE(families_take_turns_and_the_number_of_addresses_is_bounded) {
  names = resolver::make(
    [](const std::string&) -> result<addresses> {
      addresses out;
      for (auto* text : {"[fd00::1]:0", "[fd00::2]:0", "[fd00::3]:0", "10.0.0.1:0", "10.0.0.2:0"})
        out.push_back(*socket_address::parse(text));
      return out;
    },
    {.threads_max = 1, .lookups_max = 4, .addresses_max = 3});
  auto found = ask("many").get();
  BOOST_REQUIRE(found.size() == 3u);
  BOOST_TEST(found[0].host() == "fd00::1");
  BOOST_TEST(found[1].host() == "10.0.0.1");
  BOOST_TEST(found[2].host() == "fd00::2");
}

BOOST_AUTO_TEST_SUITE_END()
