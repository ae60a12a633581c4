// Tests what the tcp driver does beyond the contract: turns, broken streams, withdrawn memory.
#include "tcp_support.hpp"

#include <millrace/tests/support/skipped.hpp>

#include <netinet/tcp.h>

#include <iostream>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;
using namespace millrace::transport;
using namespace millrace::transport::testing;

namespace {

constexpr std::uint64_t large = 16u << 20;

// Remembers in which order transfers end.
struct order_of_ends {
  std::mutex mutex;
  std::vector<int> ended;
  std::vector<status> errors;
  int expected = 0;

  void submit(fabric& f, int name, const bulk_handle& from, std::byte* to, std::uint64_t length) {
    ++expected;
    f.submit(
      {.dir = direction::read, .remote = from, .ops = {{.local = to, .length = length}}},
      [this, name](result<transfer_report> r) {
        std::lock_guard guard{mutex};
        ended.push_back(name);
        if (!r)
          errors.push_back(r.error());
      });
  }
  bool wait() {
    return eventually([this] {
      std::lock_guard guard{mutex};
      return static_cast<int>(ended.size()) == expected;
    });
  }
};

void check_turns(const tcp_options& options) {
  pair_of_fabrics p{options};
  // Long enough that the thread which submits may lose its core in between.
  constexpr auto longer = 4 * large;
  exposed_matrix memory{{1, longer, 0}, access_mode::read, 3};
  std::vector<std::byte> room(3 * longer);
  order_of_ends ends;
  ends.submit(*p.there, 1, memory.handle(), room.data(), longer);
  ends.submit(*p.there, 2, memory.handle(), room.data() + longer, longer);
  ends.submit(*p.there, 3, memory.handle(), room.data() + 2 * longer, 1u << 20);
  ends.submit(*p.there, 4, memory.handle(), room.data() + 2 * longer + (2u << 20), 100);
  BOOST_TEST_REQUIRE(ends.wait());
  BOOST_TEST(ends.errors.empty());
  auto place = [&](int name) { return std::find(ends.ended.begin(), ends.ended.end(), name); };
  BOOST_TEST((place(3) < place(1) && place(3) < place(2)));
  BOOST_TEST((place(4) < place(1) && place(4) < place(2)));
  auto expected = pattern(longer, 3);
  BOOST_TEST(std::equal(expected.begin(), expected.end(), room.begin()));
  BOOST_TEST(std::equal(expected.begin(), expected.end(), room.begin() + longer));
}

// Breaks one connection a round, right after a transfer has begun.
void check_broken_streams(direction dir, const tcp_options& options = small_options()) {
  pair_of_fabrics p{options};
  std::vector<std::byte> room(large);
  for (std::uint64_t round = 0; round < 8; ++round) {
    auto reads = dir == direction::read;
    auto expected = pattern(large, round);
    exposed_matrix memory{{1, large, 0}, reads ? access_mode::read : access_mode::write, round};
    std::fill(room.begin(), room.end(), std::byte{0});
    if (!reads)
      room = expected;
    held_completion<transfer_report> done;
    p.there->submit(
      {.dir = dir, .remote = memory.handle(), .ops = {{.local = room.data(), .length = large}}},
      done.callback());
    auto open = tcp_sockets();
    if (!open.empty())
      ::shutdown(open[round % open.size()], SHUT_RDWR);
    auto moved = done.take();
    BOOST_TEST_REQUIRE(moved.has_value(), millrace::testing::why(moved));
    BOOST_TEST((reads ? room : memory.dense()) == expected);
  }
}

} // namespace

BOOST_AUTO_TEST_SUITE(tcp)

BOOST_AUTO_TEST_CASE(a_short_transfer_ends_before_longer_ones_that_began_earlier) {
  check_turns(small_options());
}

BOOST_AUTO_TEST_CASE(so_it_does_on_a_single_stream) {
  auto o = small_options();
  o.streams = 1;
  check_turns(o);
}

BOOST_AUTO_TEST_CASE(reads_survive_broken_streams) { check_broken_streams(direction::read); }

BOOST_AUTO_TEST_CASE(writes_survive_broken_streams) { check_broken_streams(direction::write); }

BOOST_AUTO_TEST_CASE(so_do_writes_on_encrypted_ones) {
  auto o = small_options();
  o.encrypt = true;
  check_broken_streams(direction::write, o);
}

BOOST_AUTO_TEST_CASE(streams_that_all_broke_are_opened_again) {
  // The other side has to notice the break before the third attempt, however busy the machine is.
  auto options = small_options();
  options.backoff_min_ms = 100;
  options.backoff_max_ms = 1000;
  pair_of_fabrics p{options};
  exposed_matrix memory{{1, 100'000, 0}, access_mode::read, 3};
  std::vector<std::byte> room(100'000);
  auto expected = pattern(100'000, 3);
  for (int i = 0; i < 10; ++i) {
    auto moved = move(*p.there, direction::read, memory.handle(), room.data(), room.size());
    BOOST_TEST_REQUIRE(moved.has_value(), millrace::testing::why(moved));
    BOOST_TEST((room == expected));
    std::fill(room.begin(), room.end(), std::byte{0});
    for (auto fd : tcp_sockets())
      ::shutdown(fd, SHUT_RDWR);
  }
}

BOOST_AUTO_TEST_CASE(memory_withdrawn_in_the_middle_ends_the_transfer_and_nothing_else) {
  pair_of_fabrics p;
  std::vector<std::byte> room(large);
  exposed_matrix other{{1, 100'000, 0}, access_mode::read, 4};
  for (auto dir : {direction::read, direction::write}) {
    exposed_matrix memory{{1, large, 0}, access_for(dir), 3};
    std::vector<held_completion<transfer_report>> done(8);
    for (auto& d : done)
      p.there->submit(
        {.dir = dir, .remote = memory.handle(), .ops = {{.local = room.data(), .length = large}}},
        d.callback());
    memory.withdraw();
    bool refused = false;
    for (auto& d : done) {
      auto outcome = d.take();
      refused |= !outcome;
      BOOST_TEST((outcome || outcome.error().code() == errc::permission_denied));
    }
    BOOST_TEST(refused);
    auto moved = move(*p.there, direction::read, other.handle(), room.data(), 100'000);
    BOOST_TEST(moved.has_value(), millrace::testing::why(moved));
    auto expected = pattern(100'000, 4);
    BOOST_TEST(std::equal(expected.begin(), expected.end(), room.begin()));
  }
}

BOOST_AUTO_TEST_CASE(both_sides_ask_at_the_same_time) {
  pair_of_fabrics p;
  exposed_matrix memory{{1, large, 0}, access_mode::read, 5};
  std::vector<std::byte> room(4 * large);
  std::vector<held_completion<transfer_report>> done(4);
  for (int i = 0; i < 4; ++i)
    (i % 2 == 0 ? p.here : p.there)
      ->submit(
        {.dir = direction::read,
         .remote = memory.handle(),
         .ops = {{.local = room.data() + i * large, .length = large}}},
        done[i].callback());
  auto expected = pattern(large, 5);
  for (int i = 0; i < 4; ++i) {
    auto moved = done[i].take();
    BOOST_TEST(moved.has_value(), millrace::testing::why(moved));
    BOOST_TEST(std::equal(expected.begin(), expected.end(), room.data() + i * large));
  }
}

BOOST_AUTO_TEST_CASE(a_peer_without_the_driver_is_not_reached_and_its_channel_lives) {
  auto loop = make_loop();
  temp_dir dir;
  auto with = tcp_fabric(loop, small_options());
  fabric_options plain;
  plain.prefer = {"local", "shm"};
  auto without = fabric::create(plain, loop).value();
  auto handler = std::make_shared<fabric_handler>(with);
  listener_options where{.address = "unix:" + dir.path + "/s", .allow_uids = {}};
  auto listening =
    listener::open(loop, where, {}, [handler](const peer_info&) { return handler; }).value();
  auto c = connect_to(loop, where.address, {}, std::make_shared<fabric_handler>(without)).value();
  exposed_matrix memory{{1, 4096, 0}, access_mode::read, 3};
  std::vector<std::byte> room(4096);
  auto moved = move(*with, direction::read, memory.handle(), room.data(), room.size());
  BOOST_TEST((!moved && moved.error().code() == errc::peer_lost));
  BOOST_TEST(c->is_open());
  listening = nullptr;
  loop->stop();
}

BOOST_AUTO_TEST_CASE(both_sides_keep_to_the_smaller_bounds) {
  auto generous_side = small_options();
  generous_side.chunk_bytes = generous_side.inflight_bytes_max = 4u << 20;
  generous_side.streams = 6;
  auto strict_side = small_options();
  strict_side.requests_max = 1;
  for (auto swapped : {false, true}) {
    // Asked for at once, before either has heard of the other's bounds.
    pair_of_fabrics p{swapped ? strict_side : generous_side, swapped ? generous_side : strict_side};
    exposed_matrix memory{{1, 4u << 20, 0}, access_mode::read, 5};
    std::vector<std::byte> room(8u << 20);
    std::vector<held_completion<transfer_report>> done(4);
    for (int i = 0; i < 4; ++i)
      (i % 2 == 0 ? p.here : p.there)
        ->submit(
          {.dir = direction::read,
           .remote = memory.handle(),
           .ops = {{.local = room.data() + i * (2u << 20), .length = 2u << 20}}},
          done[i].callback());
    for (auto& d : done) {
      auto moved = d.take();
      BOOST_TEST(moved.has_value(), millrace::testing::why(moved));
    }
    auto expected = pattern(2u << 20, 5);
    for (int i = 0; i < 4; ++i)
      BOOST_TEST(std::equal(expected.begin(), expected.end(), room.data() + i * (2u << 20)));
  }
}

BOOST_AUTO_TEST_CASE(streams_come_to_any_address_and_to_ipv6) {
  for (std::string address : {"0.0.0.0:0", "[::1]:0", "[::]:0"}) {
    auto o = small_options();
    o.listen = {address};
    auto loop = make_loop();
    fabric_options probe;
    probe.prefer = {"tcp"};
    probe.drivers.edit<tcp_options>() = o;
    auto possible = fabric::create(probe, loop).has_value();
    loop->stop();
    if (!possible) {
      millrace::testing::skipped("streams to " + address + ": no such address here");
      continue;
    }
    pair_of_fabrics p{o};
    exposed_matrix memory{{1, 100'000, 0}, access_mode::read, 3};
    std::vector<std::byte> room(100'000);
    auto moved = move(*p.there, direction::read, memory.handle(), room.data(), room.size());
    BOOST_TEST(moved.has_value(), millrace::testing::why(moved));
    BOOST_TEST((room == pattern(100'000, 3)));
  }
}

// A host that vanishes closes no stream: the kernel finds out, where nothing is under way.
BOOST_AUTO_TEST_CASE(idle_streams_are_probed) {
  auto o = small_options();
  o.keepalive_ms = 6'500; // the kernel counts seconds
  pair_of_fabrics p{o};
  BOOST_TEST_REQUIRE(eventually([&] { return tcp_sockets().size() == 2 * o.streams; }));
  for (auto fd : tcp_sockets()) {
    int on = 0, idle_s = 0;
    socklen_t size = sizeof(int);
    ::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &size);
    ::getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &size);
    BOOST_TEST(on == 1);
    BOOST_TEST(idle_s == 7);
  }
}

BOOST_AUTO_TEST_CASE(options_out_of_bounds_are_refused_by_name) {
  auto loop = make_loop();
  auto refused = [&](auto change) {
    fabric_options o;
    o.prefer = {"tcp"};
    change(o.drivers.edit<tcp_options>());
    auto made = fabric::create(o, loop);
    BOOST_TEST_REQUIRE(!made.has_value());
    BOOST_TEST((made.error().code() == errc::invalid_argument));
    return made.error().detail();
  };
  auto detail = refused([](tcp_options& o) { o.streams = 65; });
  BOOST_TEST(detail == "tcp.streams: '65' is above the most allowed, 64");
  refused([](tcp_options& o) { o.chunk_bytes = 1000; });
  refused([](tcp_options& o) { o.backoff_max_ms = 1; });
  refused([](tcp_options& o) { o.listen = {"localhost:1"}; });
  loop->stop();
}

BOOST_AUTO_TEST_SUITE_END()
