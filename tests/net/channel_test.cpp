// Tests channels between well-behaved sides: frames, descriptors, credits, closing.
#include "channel_support.hpp"

#include <fcntl.h>

#include <future>
#include <memory>
#include <thread>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;
using namespace std::chrono_literals;

namespace {

status send(
  const std::shared_ptr<channel>& c, frame_kind kind, std::uint64_t correlation,
  std::span<const std::byte> body = {}, std::span<const int> fds = {}) {
  return c->send(kind, correlation, body, fds);
}

// Sends, waiting as long as the queue is full.
void send_patiently(channel& c, std::uint64_t correlation, std::span<const std::byte> body) {
  while (true) {
    auto s = c.send(frame_kind::driver, correlation, body);
    if (s.ok())
      return;
    BOOST_REQUIRE((s.code() == errc::busy));
    std::this_thread::sleep_for(1ms);
  }
}

void write_whole(int fd, const void* data, std::size_t size) {
  BOOST_REQUIRE(::write(fd, data, size) == static_cast<ssize_t>(size));
}

// What TLS does not have.
const auto on_unix_sockets = boost::unit_test::enable_if<!over_tls>();

} // namespace

BOOST_AUTO_TEST_SUITE(channels)

BOOST_AUTO_TEST_CASE(both_sides_learn_who_is_at_the_other_end) {
  service s;
  auto client = std::make_shared<recorder>();
  auto c = s.connect(client);
  BOOST_TEST(c->is_open());
  BOOST_TEST(c->peer().name == "n0");
  BOOST_TEST(c->peer().pid == (over_tls ? 0 : static_cast<std::uint32_t>(::getpid())));
  BOOST_TEST(c->peer().uid == (over_tls ? 0 : ::geteuid()));
  BOOST_TEST(c->peer().connected_by_us);
  BOOST_TEST(c->peer().address.has_value() == over_tls);
  if (over_tls)
    BOOST_TEST("tls://" + c->peer().address->to_string() == s.address());
  BOOST_TEST((c->peer().id == this_peer()));
  BOOST_TEST(c->peer().protocol == protocol_version_max);
  BOOST_REQUIRE(s.handler->wait([&] { return s.handler->channels.size() == 1; }));
  auto& seen = s.handler->channels[0]->peer();
  BOOST_TEST(seen.name == "client:" + std::to_string(::getpid()));
  BOOST_TEST(!seen.connected_by_us);
  if (over_tls)
    BOOST_TEST(seen.address->host() == "127.0.0.1");
}

BOOST_AUTO_TEST_CASE(both_sides_derive_the_same_keys_one_for_each_label_and_channel) {
  service s;
  auto client = std::make_shared<recorder>();
  auto c = s.connect(client);
  auto other = s.connect(client);
  BOOST_REQUIRE(s.handler->wait([&] { return s.handler->channels.size() == 2; }));
  auto key = c->derive_key("a");
  BOOST_TEST((key == s.handler->channels[0]->derive_key("a")));
  BOOST_TEST((key != c->derive_key("b")));
  BOOST_TEST((key != other->derive_key("a")));
}

BOOST_AUTO_TEST_CASE(a_newcomer_that_is_refused_is_told_why_and_takes_no_place) {
  listener_options one;
  one.connections_max = 1;
  service s{{}, one};
  auto client = std::make_shared<recorder>();
  s.is_starting = true;
  for (int i = 0; i < 3; ++i) {
    auto refused = connect_to(s.loop, s.address(), {}, client);
    BOOST_REQUIRE(!refused);
    auto& why = refused.error();
    BOOST_TEST((why.code() == errc::unavailable), why.to_string());
    BOOST_TEST(is_starting(why), why.to_string());
    BOOST_TEST(why.detail().starts_with("connecting to " + s.address()), why.detail());
    BOOST_TEST(
      why.detail().ends_with("refused the connection: node n0 is starting; try again"),
      why.detail());
  }
  s.is_starting = false;
  BOOST_TEST(s.connect(client)->is_open());
  BOOST_TEST(client->look([&] { return client->channels.size() == 1; }));
}

BOOST_AUTO_TEST_CASE(another_node_than_expected_is_an_error_that_names_both) {
  service s;
  channel_options o;
  o.expected_name = "n7";
  auto c = connect_to(s.loop, s.address(), o, std::make_shared<recorder>());
  BOOST_REQUIRE(!c);
  BOOST_TEST((c.error().code() == errc::permission_denied));
  BOOST_TEST(c.error().detail().find("node n0 answered instead of node n7") != std::string::npos);
  BOOST_TEST(c.error().detail().find(s.address()) != std::string::npos);
  o.expected_name = "n0";
  BOOST_TEST(connect_to(s.loop, s.address(), o, std::make_shared<recorder>()).has_value());
}

BOOST_AUTO_TEST_CASE(a_namesake_with_another_secret_is_refused, *on_unix_sockets) {
  service s;
  channel_options o;
  o.expected_name = "n0";
  o.tls = make_tls();
  auto c = connect_to(s.loop, s.address(), o, std::make_shared<recorder>());
  BOOST_REQUIRE(!c);
  BOOST_TEST((c.error().code() == errc::permission_denied));
  BOOST_TEST(c.error().detail().find("named n0") != std::string::npos);
  // A client that names no node takes any, and the node's own cluster is let in.
  o.expected_name.clear();
  BOOST_TEST(connect_to(s.loop, s.address(), o, std::make_shared<recorder>()).has_value());
  o.expected_name = "n0";
  o.tls = s.options.tls;
  BOOST_TEST(connect_to(s.loop, s.address(), o, std::make_shared<recorder>()).has_value());
}

BOOST_AUTO_TEST_CASE(frames_of_every_size_arrive_as_sent_both_ways) {
  service s;
  s.handler->react = [](channel& c, const frame& f) {
    BOOST_TEST(c.send(frame_kind::driver, f.correlation, f.body).ok());
  };
  auto client = std::make_shared<recorder>();
  auto c = s.connect(client);
  std::vector<std::size_t> sizes{0, 1, 4096, 32744, 32768, 100000, 1u << 20, 16u << 20};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    auto body = bytes_of(sizes[i], static_cast<std::uint8_t>(i));
    BOOST_REQUIRE(send(c, frame_kind::driver, i, body).ok());
    BOOST_REQUIRE(client->wait_frames(i + 1));
    BOOST_TEST(client->frames[i].correlation == i);
    BOOST_TEST((client->frames[i].kind == frame_kind::driver));
    BOOST_TEST((client->frames[i].body == body));
    BOOST_TEST((s.handler->frames[i].body == body));
  }
}

BOOST_AUTO_TEST_CASE(a_body_above_the_peers_bound_is_refused_here) {
  channel_options small;
  small.frame_bytes_max = 10000;
  service s{small};
  auto client = std::make_shared<recorder>();
  auto c = s.connect(client);
  auto refused = send(c, frame_kind::driver, 1, bytes_of(10001));
  BOOST_TEST((refused.code() == errc::invalid_argument));
  BOOST_TEST(send(c, frame_kind::driver, 1, bytes_of(10000)).ok());
  BOOST_TEST(s.handler->wait_frames(1));
}

BOOST_AUTO_TEST_CASE(descriptors_travel_with_their_frames, *on_unix_sockets) {
  service s;
  auto client = std::make_shared<recorder>();
  auto c = s.connect(client);
  for (int i = 0; i < 20; ++i) {
    int ends[2];
    BOOST_REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    write_whole(ends[1], &i, sizeof(i));
    std::array<int, 2> fds{ends[0], ends[1]};
    BOOST_TEST(send(c, frame_kind::driver, 100, bytes_of(3)).ok());
    // Busy while the socket is full of the frames that went before the ring.
    auto sent = send(c, frame_kind::driver, i, bytes_of(i * 1000), fds);
    for (; sent.code() == errc::busy; std::this_thread::yield())
      sent = send(c, frame_kind::driver, i, bytes_of(i * 1000), fds);
    BOOST_TEST(sent.ok(), sent.to_string());
    ::close(ends[0]);
    ::close(ends[1]);
  }
  BOOST_REQUIRE(s.handler->wait_frames(40));
  for (int i = 0; i < 20; ++i) {
    auto& f = s.handler->frames[2 * i + 1];
    BOOST_REQUIRE(f.fds.size() == 2u);
    int value = -1;
    BOOST_TEST(
      ::read(f.fds[0].get(), &value, sizeof(value)) == static_cast<ssize_t>(sizeof(value)));
    BOOST_TEST(value == i);
    BOOST_TEST((::fcntl(f.fds[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
    BOOST_TEST(s.handler->frames[2 * i].fds.empty());
  }
}

BOOST_AUTO_TEST_CASE(
  descriptors_queued_behind_a_full_socket_outlive_the_senders_copy, *on_unix_sockets) {
  service s;
  std::atomic<bool> hold = true;
  s.handler->react = [&](channel&, const frame&) {
    while (hold)
      std::this_thread::sleep_for(1ms);
  };
  auto client_loop = make_loop();
  auto client = std::make_shared<recorder>();
  auto c = *connect_to(client_loop, s.address(), {}, client);
  BOOST_TEST(send(c, frame_kind::driver, 0, bytes_of(8u << 20)).ok());
  BOOST_TEST(send(c, frame_kind::driver, 0, bytes_of(8u << 20)).ok());
  int ends[2];
  BOOST_REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  write_whole(ends[1], "x", 1);
  BOOST_TEST(send(c, frame_kind::driver, 1, {}, std::array{ends[0]}).ok());
  ::close(ends[0]);
  ::close(ends[1]);
  hold = false;
  BOOST_REQUIRE(s.handler->wait_frames(3));
  BOOST_REQUIRE(s.handler->frames[2].fds.size() == 1u);
  char byte = 0;
  BOOST_TEST(::read(s.handler->frames[2].fds[0].get(), &byte, 1) == 1);
  BOOST_TEST(byte == 'x');
  client_loop->stop();
}

BOOST_AUTO_TEST_CASE(too_many_descriptors_and_closed_ones_are_refused_here, *on_unix_sockets) {
  service s;
  auto client = std::make_shared<recorder>();
  auto c = s.connect(client);
  std::vector<int> many(9, 0);
  BOOST_TEST((send(c, frame_kind::driver, 1, {}, many).code() == errc::invalid_argument));
  BOOST_TEST(
    (send(c, frame_kind::driver, 1, {}, std::array{987654}).code() == errc::invalid_argument));
  BOOST_TEST(send(c, frame_kind::driver, 2).ok());
  BOOST_TEST(s.handler->wait_frames(1));
}

BOOST_AUTO_TEST_CASE(frames_of_one_thread_arrive_in_order_whatever_the_others_send) {
  service s;
  auto client_loop = make_loop();
  auto client = std::make_shared<recorder>();
  auto c = *connect_to(client_loop, s.address(), {}, client);
  constexpr std::uint64_t threads = 3, each = 400;
  std::vector<std::thread> senders;
  for (std::uint64_t t = 0; t < threads; ++t)
    senders.emplace_back([&, t] {
      auto body = bytes_of(t * 20000);
      for (std::uint64_t i = 0; i < each; ++i)
        send_patiently(*c, t << 32 | i, body);
    });
  for (auto& t : senders)
    t.join();
  BOOST_REQUIRE(s.handler->wait_frames(threads * each));
  std::array<std::uint64_t, threads> next{};
  for (auto& f : s.handler->frames) {
    auto t = f.correlation >> 32;
    BOOST_REQUIRE((f.correlation & 0xffffffff) == next[t]++);
    BOOST_REQUIRE(f.body.size() == t * 20000);
  }
  client_loop->stop();
}

BOOST_AUTO_TEST_CASE(requests_above_the_grant_wait_here_and_beyond_the_bound_are_busy) {
  channel_options granting;
  granting.requests_max = 2;
  service s{granting};
  channel_options queueing;
  queueing.requests_queued_max = 3;
  auto client = std::make_shared<recorder>();
  auto c = s.connect(client, queueing);
  for (std::uint64_t i = 0; i < 5; ++i)
    BOOST_TEST(send(c, frame_kind::request, i).ok());
  BOOST_TEST((send(c, frame_kind::request, 5).code() == errc::busy));
  // Other kinds need no credit, and show that no third request is on its way.
  BOOST_TEST(send(c, frame_kind::driver, 99).ok());
  BOOST_REQUIRE(s.handler->wait_frames(3));
  BOOST_TEST(s.handler->frames[2].correlation == 99u);
  auto at_service = s.handler->channels[0];
  for (std::uint64_t i = 0; i < 5; ++i) {
    BOOST_REQUIRE(s.handler->wait_frames(std::min<std::uint64_t>(3 + i, 6)));
    BOOST_TEST(send(at_service, frame_kind::reply, i).ok());
    BOOST_REQUIRE(client->wait_frames(i + 1));
  }
  BOOST_TEST(s.handler->frames.size() == 6u);
  BOOST_TEST(send(c, frame_kind::request, 6).ok());
}

BOOST_AUTO_TEST_CASE(a_cancellation_does_not_overtake_its_waiting_request) {
  channel_options granting;
  granting.requests_max = 1;
  service s{granting};
  auto client = std::make_shared<recorder>();
  auto c = s.connect(client);
  BOOST_TEST(send(c, frame_kind::request, 1).ok());
  BOOST_TEST(send(c, frame_kind::request, 2).ok());
  BOOST_TEST(send(c, frame_kind::cancel, 2).ok());
  BOOST_TEST(send(c, frame_kind::cancel, 1).ok());
  BOOST_REQUIRE(s.handler->wait_frames(2));
  BOOST_TEST((s.handler->frames[1].kind == frame_kind::cancel));
  BOOST_TEST(s.handler->frames[1].correlation == 1u);
  BOOST_TEST(send(s.handler->channels[0], frame_kind::reply, 1).ok());
  BOOST_REQUIRE(s.handler->wait_frames(4));
  BOOST_TEST((s.handler->frames[2].kind == frame_kind::request));
  BOOST_TEST((s.handler->frames[3].kind == frame_kind::cancel));
  BOOST_TEST(s.handler->frames[3].correlation == 2u);
}

// What they asked is found before their end is, in a ring or in the rest of a read.
BOOST_AUTO_TEST_CASE(requests_of_a_peer_that_left_while_this_side_was_busy_are_dropped) {
  service s;
  std::promise<void> busy, left;
  s.handler->react = [&](channel&, const frame& f) {
    if (f.kind != frame_kind::request || f.correlation != 1)
      return;
    busy.set_value();
    left.get_future().wait();
  };
  auto loop = make_loop();
  auto c = connect_to(loop, s.address(), {}, std::make_shared<recorder>());
  BOOST_REQUIRE(c);
  // By then frames pass through the ring, where there is one.
  for (std::size_t i = 1; i <= 20; ++i) {
    BOOST_REQUIRE(send(*c, frame_kind::driver, i, bytes_of(10, 1)).ok());
    BOOST_REQUIRE(s.handler->wait_frames(i));
  }
  BOOST_REQUIRE(send(*c, frame_kind::request, 1, bytes_of(10, 1)).ok());
  busy.get_future().wait();
  BOOST_REQUIRE(send(*c, frame_kind::request, 2, bytes_of(10, 2)).ok());
  loop->stop();
  std::this_thread::sleep_for(50ms); // longer than an end goes unnoticed
  left.set_value();
  BOOST_REQUIRE(s.handler->wait_closings(1));
  BOOST_TEST(s.handler->frame_count() == 21u);
}

BOOST_AUTO_TEST_CASE(a_full_send_queue_is_busy_and_empties_again) {
  service s;
  std::atomic<bool> hold = true;
  s.handler->react = [&](channel&, const frame&) {
    while (hold)
      std::this_thread::sleep_for(1ms);
  };
  auto client_loop = make_loop();
  channel_options small;
  small.send_queue_bytes_max = 4u << 20;
  auto client = std::make_shared<recorder>();
  auto c = *connect_to(client_loop, s.address(), small, client);
  auto body = bytes_of(1u << 20);
  std::size_t taken = 0;
  status last;
  while (taken < 100 && (last = send(c, frame_kind::driver, taken, body)).ok())
    ++taken;
  BOOST_TEST((last.code() == errc::busy));
  BOOST_TEST(taken >= 4u);
  hold = false;
  send_patiently(*c, taken, body);
  BOOST_TEST(s.handler->wait_frames(taken + 1));
  client_loop->stop();
}

BOOST_AUTO_TEST_CASE(close_writes_what_is_queued_and_gives_the_reason_to_the_other_side) {
  service s;
  auto client_loop = make_loop();
  auto client = std::make_shared<recorder>();
  auto c = *connect_to(client_loop, s.address(), {}, client);
  auto body = bytes_of(4u << 20);
  for (int i = 0; i < 4; ++i)
    BOOST_REQUIRE(send(c, frame_kind::driver, i, body).ok());
  c->close(status{errc::unavailable, "going home"}, 30000);
  BOOST_TEST((send(c, frame_kind::driver, 9).code() == errc::peer_lost));
  BOOST_REQUIRE(client->wait_closings(1));
  BOOST_TEST((client->closings[0] == status{errc::unavailable, "going home"}));
  BOOST_REQUIRE(s.handler->wait_closings(1));
  BOOST_TEST(s.handler->frames.size() == 4u);
  BOOST_TEST((s.handler->frames[3].body == body));
  auto& why = s.handler->closings[0];
  BOOST_TEST((why.code() == errc::peer_lost));
  BOOST_TEST(why.detail().find("going home") != std::string::npos);
  auto who = over_tls ? "127.0.0.1" : "pid " + std::to_string(::getpid());
  BOOST_TEST(why.detail().find(who) != std::string::npos);
  BOOST_TEST(!c->is_open());
  client_loop->stop();
}

BOOST_AUTO_TEST_CASE(stopping_the_loop_ends_its_channels_with_one_last_word) {
  service s;
  auto client_loop = make_loop();
  auto client = std::make_shared<recorder>();
  auto c = *connect_to(client_loop, s.address(), {}, client);
  client_loop->stop();
  BOOST_REQUIRE(client->closings.size() == 1u);
  BOOST_TEST((client->closings[0].code() == errc::unavailable));
  BOOST_TEST(s.handler->wait_closings(1));
  BOOST_TEST((send(c, frame_kind::driver, 1).code() == errc::peer_lost));
  auto late = connect_to(client_loop, s.address(), {}, client);
  BOOST_REQUIRE(!late);
  BOOST_TEST((late.error().code() == errc::unavailable));
}

BOOST_AUTO_TEST_CASE(a_waiting_thread_reads_its_own_reply) {
  service s;
  s.handler->react = [](channel& c, const frame& f) {
    BOOST_TEST(c.send(frame_kind::reply, f.correlation, f.body).ok());
  };
  auto client_loop = make_loop();
  std::mutex mutex;
  std::unordered_map<std::uint64_t, promise<std::size_t>> waiting;
  auto client = std::make_shared<recorder>();
  client->react = [&](channel&, const frame& f) {
    std::lock_guard guard{mutex};
    waiting.at(f.correlation).set(f.body.size());
  };
  auto c = *connect_to(client_loop, s.address(), {}, client);
  std::vector<std::thread> callers;
  for (std::uint64_t t = 0; t < 2; ++t)
    callers.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 500; ++i) {
        promise<std::size_t> p{client_loop};
        auto correlation = t << 32 | i;
        {
          std::lock_guard guard{mutex};
          waiting.emplace(correlation, p);
        }
        BOOST_REQUIRE(send(c, frame_kind::request, correlation, bytes_of(i)).ok());
        BOOST_REQUIRE(p.get_future().get() == i);
      }
    });
  for (auto& t : callers)
    t.join();
  client_loop->stop();
}

BOOST_AUTO_TEST_CASE(a_thousand_connections_leak_no_descriptor) {
  service s;
  auto client = std::make_shared<recorder>();
  auto cycle = [&](std::size_t n) {
    auto c = s.connect(client);
    c->close({});
    BOOST_REQUIRE(client->wait_closings(n));
    BOOST_REQUIRE(s.handler->wait_closings(n));
    client->channels.clear();
    s.handler->channels.clear();
  };
  cycle(1);
  auto before = open_descriptors();
  for (std::size_t i = 2; i <= 1000; ++i)
    cycle(i);
  BOOST_TEST(open_descriptors() <= before + 1);
}

BOOST_AUTO_TEST_SUITE_END()
