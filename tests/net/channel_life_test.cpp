// Tests heartbeats and links with peers that die, stop, or come back.
// Uses forked processes. Waits are generous; only shortened timeouts of the channel itself run out.
#include "channel_support.hpp"

#include <millrace/net/channel/link.hpp>

#include <thread>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;
using namespace std::chrono_literals;

namespace {

channel_options lively(std::uint32_t heartbeat_ms, std::uint32_t timeout_ms) {
  channel_options o;
  o.heartbeat_ms = heartbeat_ms;
  o.peer_timeout_ms = timeout_ms;
  return o;
}

// Connects from a child and stays until killed.
int stay_connected(const std::string& address, int ready) {
  auto loop = *io_loop::start({});
  promise<std::shared_ptr<channel>> p{loop};
  channel_options options;
  options.tls = shared_tls();
  connect(loop, address, options, std::make_shared<recorder>(), [p](auto o) { p.set(o); });
  if (!p.get_future().result())
    return 1;
  say_ready(ready);
  while (true)
    ::pause();
}

// Serves `address` until killed.
int serve(const std::string& address, int ready) {
  auto loop = *io_loop::start({});
  listener_options where;
  where.address = address;
  auto handler = std::make_shared<recorder>();
  auto l = listener::open(loop, where, {}, [=](const peer_info&) { return handler; });
  if (!l)
    return 1;
  say_ready(ready);
  while (true)
    ::pause();
}

result<std::shared_ptr<channel>> acquire(net::link& l) {
  promise<std::shared_ptr<channel>> p;
  l.acquire([p](auto outcome) { p.set(outcome); });
  return p.get_future().result();
}

// Tries until it works: the backoff refuses in between.
std::shared_ptr<channel> acquire_patiently(net::link& l) {
  auto deadline = steady_clock::now() + generous;
  while (steady_clock::now() < deadline) {
    if (auto c = acquire(l))
      return *c;
    std::this_thread::sleep_for(5ms);
  }
  BOOST_FAIL("the link did not come back");
  return nullptr;
}

struct linked {
  explicit linked(const std::string& address, link_options o = quick()) {
    o.address = address;
    l = net::link::make(loop, o, [this] { return handler; });
  }
  ~linked() {
    l = nullptr;
    loop->stop();
  }
  static link_options quick() {
    link_options o;
    o.backoff_min_ms = 5;
    o.backoff_max_ms = 50;
    return o;
  }
  std::shared_ptr<io_loop> loop = make_loop();
  std::shared_ptr<recorder> handler = std::make_shared<recorder>();
  std::shared_ptr<net::link> l;
};

} // namespace

BOOST_AUTO_TEST_SUITE(peers)

BOOST_AUTO_TEST_CASE(a_killed_peer_is_lost_at_once_and_named) {
  child_process client{stay_connected};
  service s;
  client.begin(s.address());
  BOOST_REQUIRE(client.wait_ready());
  auto who = over_tls ? "127.0.0.1" : "pid " + std::to_string(client.pid());
  client.signal(SIGKILL);
  BOOST_REQUIRE(s.handler->wait_closings(1));
  BOOST_TEST((s.handler->closings[0].code() == errc::peer_lost));
  BOOST_TEST(s.handler->closings[0].detail().find(who) != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_peer_that_hangs_is_lost_after_the_timeout) {
  child_process client{stay_connected};
  service s{lively(20, 200)};
  client.begin(s.address());
  BOOST_REQUIRE(client.wait_ready());
  client.signal(SIGSTOP);
  BOOST_REQUIRE(s.handler->wait_closings(1));
  BOOST_TEST((s.handler->closings[0].code() == errc::peer_lost));
  BOOST_TEST(s.handler->closings[0].detail().find("silent") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_idle_channel_is_kept_alive_by_heartbeats) {
  child_process client{stay_connected};
  service s{lively(10, 3000)};
  client.begin(s.address());
  BOOST_REQUIRE(client.wait_ready());
  std::this_thread::sleep_for(3500ms);
  BOOST_TEST(s.handler->closings.empty());
  BOOST_TEST(s.handler->channels[0]->is_open());
}

BOOST_AUTO_TEST_CASE(a_pause_of_this_process_does_not_make_its_peers_lost) {
  child_process both{[](auto&, int ready) {
    service s{lively(100, 1000)};
    auto client = std::make_shared<recorder>();
    auto c = s.connect(client, lively(100, 1000));
    say_ready(ready);
    std::this_thread::sleep_for(300ms);
    if (!c->send(frame_kind::driver, 1, {}).ok() || !s.handler->wait_frames(1))
      return 1;
    return client->closings.empty() && s.handler->closings.empty() ? 0 : 2;
  }};
  both.begin("now");
  BOOST_REQUIRE(both.wait_ready());
  both.signal(SIGSTOP);
  std::this_thread::sleep_for(1500ms);
  both.signal(SIGCONT);
  BOOST_TEST(both.wait() == 0);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(links, *boost::unit_test::enable_if<!over_tls>())

BOOST_AUTO_TEST_CASE(a_link_connects_at_first_use_and_keeps_its_channel) {
  service s;
  linked k{s.address()};
  BOOST_TEST((k.l->state().now == link_state::phase::idle));
  auto a = acquire(*k.l);
  BOOST_REQUIRE(a);
  auto b = acquire(*k.l);
  BOOST_REQUIRE(b);
  BOOST_TEST(*a == *b);
  BOOST_TEST((k.l->state().now == link_state::phase::open));
  BOOST_TEST(k.l->state().opened == 1u);
  BOOST_TEST((*a)->send(frame_kind::driver, 3, bytes_of(10)).ok());
  BOOST_TEST(s.handler->wait_frames(1));
}

BOOST_AUTO_TEST_CASE(uses_that_meet_while_connecting_share_one_connection) {
  service s;
  linked k{s.address()};
  std::vector<promise<std::shared_ptr<channel>>> all(20);
  for (auto& p : all)
    k.l->acquire([p](auto outcome) { p.set(outcome); });
  auto first = all[0].get_future().get();
  for (auto& p : all)
    BOOST_TEST(p.get_future().get() == first);
  BOOST_TEST(k.l->state().opened == 1u);
}

BOOST_AUTO_TEST_CASE(while_down_a_use_fails_fast_and_names_address_and_cause) {
  temp_dir dir;
  auto address = "unix:" + dir.path + "/none.sock";
  auto slow = linked::quick();
  slow.backoff_min_ms = slow.backoff_max_ms = 60000;
  linked k{address, slow};
  auto first = acquire(*k.l);
  BOOST_REQUIRE(!first);
  BOOST_TEST((first.error().code() == errc::unavailable));
  auto second = acquire(*k.l);
  BOOST_REQUIRE(!second);
  BOOST_TEST((second.error().code() == errc::unavailable));
  BOOST_TEST(second.error().detail().find(address) != std::string::npos);
  BOOST_TEST(second.error().detail().find("no process listens") != std::string::npos);
  BOOST_TEST((k.l->state().now == link_state::phase::waiting));
  BOOST_TEST(k.l->state().failed == 1u);
}

BOOST_AUTO_TEST_CASE(a_use_during_the_backoff_says_too_that_the_service_is_starting) {
  service s;
  s.is_starting = true;
  auto slow = linked::quick();
  slow.backoff_min_ms = slow.backoff_max_ms = 60000;
  linked k{s.address(), slow};
  for (int i = 0; i < 2; ++i) {
    auto refused = acquire(*k.l);
    BOOST_REQUIRE(!refused);
    BOOST_TEST(is_starting(refused.error()), refused.error().to_string());
  }
  BOOST_TEST(k.l->state().failed == 1u);
}

BOOST_AUTO_TEST_CASE(a_link_comes_back_after_its_service_was_killed_and_restarted) {
  temp_dir dir;
  auto address = "unix:" + dir.path + "/n0.sock";
  auto first = std::make_unique<child_process>(serve);
  child_process second{serve};
  first->begin(address);
  BOOST_REQUIRE(first->wait_ready());
  linked k{address};
  auto old = acquire(*k.l);
  BOOST_REQUIRE(old);
  first = nullptr;
  BOOST_REQUIRE(k.handler->wait_closings(1));
  BOOST_TEST((k.handler->closings[0].code() == errc::peer_lost));
  auto down = acquire(*k.l);
  BOOST_TEST(!down);
  second.begin(address);
  BOOST_REQUIRE(second.wait_ready());
  auto fresh = acquire_patiently(*k.l);
  BOOST_TEST(fresh != *old);
  BOOST_TEST(fresh->peer().pid == static_cast<std::uint32_t>(second.pid()));
  BOOST_TEST(k.l->state().opened == 2u);
  BOOST_TEST(k.l->state().failed == 0u);
}

BOOST_AUTO_TEST_CASE(a_lost_link_reconnects_without_being_used) {
  service s;
  linked k{s.address()};
  BOOST_REQUIRE(acquire(*k.l));
  BOOST_REQUIRE(s.handler->wait([&] { return s.handler->channels.size() == 1; }));
  s.handler->channels[0]->close(status{errc::unavailable, "restart"});
  BOOST_TEST(k.handler->wait([&] { return k.handler->channels.size() == 2; }));
}

BOOST_AUTO_TEST_CASE(a_service_that_never_answers_costs_the_connect_timeout_only) {
  temp_dir dir;
  auto address = "unix:" + dir.path + "/mute.sock";
  auto where = parse_unix_address(address);
  unique_fd mute{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  BOOST_REQUIRE(
    ::bind(mute.get(), reinterpret_cast<const sockaddr*>(&*where), sizeof(*where)) == 0);
  BOOST_REQUIRE(::listen(mute.get(), 5) == 0);
  auto short_time = linked::quick();
  short_time.connect_timeout_ms = 50;
  linked k{address, short_time};
  auto c = acquire(*k.l);
  BOOST_REQUIRE(!c);
  BOOST_TEST((c.error().code() == errc::deadline_exceeded));
}

BOOST_AUTO_TEST_CASE(dropping_a_link_answers_its_waiters_and_closes_its_channel) {
  temp_dir dir;
  auto address = "unix:" + dir.path + "/mute.sock";
  auto where = parse_unix_address(address);
  unique_fd mute{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  BOOST_REQUIRE(
    ::bind(mute.get(), reinterpret_cast<const sockaddr*>(&*where), sizeof(*where)) == 0);
  BOOST_REQUIRE(::listen(mute.get(), 5) == 0);
  linked k{address};
  promise<std::shared_ptr<channel>> p;
  k.l->acquire([p](auto outcome) { p.set(outcome); });
  k.l = nullptr;
  auto outcome = p.get_future().result();
  BOOST_REQUIRE(!outcome);
  BOOST_TEST((outcome.error().code() == errc::cancelled));
  service s;
  auto open = std::make_unique<linked>(s.address());
  BOOST_REQUIRE(acquire(*open->l));
  open->l = nullptr;
  BOOST_TEST(s.handler->wait_closings(1));
}

BOOST_AUTO_TEST_CASE(a_closed_link_stays_closed) {
  service s;
  linked k{s.address()};
  BOOST_REQUIRE(acquire(*k.l));
  k.l->close(status{errc::unavailable, "done"}, 1000);
  BOOST_REQUIRE(k.handler->wait_closings(1));
  auto again = acquire(*k.l);
  BOOST_REQUIRE(!again);
  BOOST_TEST((again.error().code() == errc::unavailable));
  BOOST_TEST((k.l->state().now == link_state::phase::closed));
}

BOOST_AUTO_TEST_SUITE_END()
