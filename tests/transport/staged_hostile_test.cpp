// Tests peers and owners of device memory that ask for too much, say nonsense, or keep what they
// were lent.
#include "staged_world.hpp"

#include <future>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::net;
using namespace millrace::transport;
using namespace millrace::transport::staged;
using namespace millrace::transport::staged::testing;

BOOST_AUTO_TEST_SUITE(staged_hostile)

BOOST_AUTO_TEST_CASE(nobody_gets_more_chunks_than_the_bound) {
  world w;
  auto source = w.expose_tensor(1000, access_mode::read);
  raw_peer peer{w};
  for (std::uint64_t n = 1; n <= 4; ++n)
    BOOST_TEST(w.lending->on_stage(w.request(n, source, {{0, 10}})).ok());
  BOOST_TEST(is(peer.wait_lent(4).code, errc::busy));
  for (std::uint64_t n = 1; n <= 3; ++n)
    BOOST_TEST(is(peer.wait_lent(n).code, errc::ok));
  // What is given back can be had again.
  w.lending->on_release({2, false});
  BOOST_TEST(w.lending->on_stage(w.request(5, source, {{0, 10}})).ok());
  BOOST_TEST(is(peer.wait_lent(5).code, errc::ok));
}

BOOST_AUTO_TEST_CASE(requests_without_right_or_sense_get_no_chunk) {
  world w;
  auto source = w.expose_tensor(1000, access_mode::read);
  std::vector<std::byte> host(1000);
  auto of_host = expose({{{"h", dtype::u8, {1000}}, host.data(), {}}}, access_mode::read).value();
  raw_peer peer{w};
  auto refused = [&](stage m, errc code) {
    auto number = m.number;
    auto taken = w.lending->on_stage(std::move(m));
    BOOST_TEST(taken.ok());
    BOOST_TEST(is(peer.wait_lent(number).code, code));
  };
  auto wrong_key = w.request(1, source, {});
  wrong_key.key.bytes[0] ^= 1;
  refused(wrong_key, errc::permission_denied);
  auto wrong_way = w.request(2, source, {{0, 10}});
  wrong_way.dir = 2;
  refused(wrong_way, errc::permission_denied);
  refused(w.request(3, source, {{995, 10}}), errc::permission_denied);
  refused(w.request(4, source, {{~0ull - 5, 10}}), errc::permission_denied);
  auto beyond = w.request(5, source, {{0, 10}});
  beyond.region_end = 1001;
  refused(beyond, errc::permission_denied);
  auto no_device = w.request(6, source, {{0, 10}});
  no_device.region = of_host.handle().region;
  no_device.key = of_host.handle().key;
  refused(no_device, errc::unsupported);
  BOOST_TEST(w.pool->now().chunks == 0u);
  BOOST_TEST(w.device.copies() == 0u);

  auto breaks = [&](const stage& m) {
    auto bad = w.lending->on_stage(m);
    BOOST_TEST((bad.code() == errc::protocol_error));
  };
  auto no_way = w.request(7, source, {{0, 10}});
  no_way.dir = 3;
  breaks(no_way);
  breaks(w.request(8, source, {{0, chunk_bytes}, {0, 1}}));
  breaks(w.request(9, source, {{0, 1}, {0, ~0ull}}));
  breaks(w.request(10, source, std::vector<segment>(ranges_max + 1)));
  BOOST_TEST(w.lending->on_stage(w.request(11, source, {{0, 10}})).ok());
  BOOST_TEST(is(peer.wait_lent(11).code, errc::ok));
  breaks(w.request(11, source, {{0, 10}}));
  BOOST_TEST((w.lending->on_commit({11}).code() == errc::protocol_error));
}

BOOST_AUTO_TEST_CASE(a_chunk_that_is_kept_too_long_is_taken_back) {
  auto options = small_options();
  options.size_bytes = chunk_bytes;
  world w{options};
  auto target = w.expose_tensor(1000, access_mode::write, 1);
  raw_peer peer{w};
  BOOST_TEST(w.lending->on_stage(w.request(1, target, {{0, 10}})).ok());
  auto lent = peer.wait_lent(1);
  BOOST_TEST(w.lending->on_stage(w.request(2, target, {{0, 10}})).ok());
  // The second waits for the first one's chunk, in vain.
  w.lending->expire(steady_clock::now());
  BOOST_TEST(w.lending->requests() == 2u);
  w.lending->expire(steady_clock::now() + std::chrono::hours{2});
  BOOST_TEST(is(peer.wait_lent(2).code, errc::busy));
  BOOST_TEST(eventually([&] { return w.all_is_back(); }));
  BOOST_TEST(!find_region(lent.region, lent.key, access_mode::write).has_value());
  BOOST_TEST(w.lending->on_commit({1}).ok());
  BOOST_TEST(is(peer.wait_ended(1).code, errc::deadline_exceeded));
  BOOST_TEST((w.content(target) == pattern(1000, 1)));
}

BOOST_AUTO_TEST_CASE(another_peer_finds_nothing_of_what_passed) {
  auto options = small_options();
  options.size_bytes = chunk_bytes;
  world w{options};
  auto secret = w.expose_tensor(chunk_bytes, access_mode::read, 1);
  auto other = w.expose_tensor(100, access_mode::read, 2);
  raw_peer peer{w};
  BOOST_TEST(w.lending->on_stage(w.request(1, secret, {{0, chunk_bytes}})).ok());
  auto first = peer.wait_lent(1);
  w.lending->on_release({1, false});
  auto second_channel = std::make_shared<wire>();
  second_channel->deliver = w.to_peer->deliver;
  auto second_peer = std::make_shared<lending_side>(second_channel, w.pool, options);
  BOOST_TEST(second_peer->on_stage(w.request(2, other, {{0, 100}})).ok());
  auto second = peer.wait_lent(2);
  BOOST_TEST(!find_region(first.region, first.key, access_mode::read).has_value());
  auto chunk_now = find_region(second.region, second.key, access_mode::read).value();
  std::vector<std::byte> seen(chunk_bytes);
  chunk_now.lease()->memory().read(0, seen.data(), chunk_bytes, store_mode::cached);
  auto expected = pattern(100, 2);
  expected.resize(chunk_bytes, std::byte{0});
  BOOST_TEST((seen == expected));
  second_peer->close();
}

// However many connections a process has, it keeps the chunks of its share only.
BOOST_AUTO_TEST_CASE(connections_of_one_process_leave_chunks_for_another) {
  auto options = small_options();
  options.size_bytes = 16 * chunk_bytes;
  options.chunks_max = 8;
  world w{options};
  auto source = w.expose_tensor(1000, access_mode::read);
  raw_peer peer{w};
  auto side_to = [&](const peer_id& id) {
    auto channel = std::make_shared<wire>(id);
    channel->deliver = w.to_peer->deliver;
    return std::make_shared<lending_side>(channel, w.pool, options);
  };
  auto second = side_to(this_peer()), other = side_to(random_id<peer_id>());
  for (std::uint64_t n = 1; n <= 8; ++n) {
    BOOST_TEST(w.lending->on_stage(w.request(n, source, {{0, 10}})).ok());
    BOOST_TEST(is(peer.wait_lent(n).code, errc::ok));
  }
  for (std::uint64_t n = 101; n <= 108; ++n)
    BOOST_TEST(second->on_stage(w.request(n, source, {{0, 10}})).ok());
  BOOST_TEST(other->on_stage(w.request(201, source, {{0, 10}})).ok());
  BOOST_TEST(is(peer.wait_lent(201).code, errc::ok));
  BOOST_TEST(w.pool->now().waiting == 8u);
  BOOST_TEST(w.pool->now().free == 7u);
  // What the process gives back serves its other connection.
  w.lending->on_release({1, false});
  BOOST_TEST(is(peer.wait_lent(101).code, errc::ok));
  BOOST_TEST(w.pool->now().waiting == 7u);
  second->close();
  other->close();
}

BOOST_AUTO_TEST_CASE(requests_that_come_and_go_leave_nothing_behind) {
  auto options = small_options();
  options.size_bytes = chunk_bytes;
  world w{options};
  auto source = w.expose_tensor(1000, access_mode::read);
  raw_peer peer{w};
  BOOST_TEST(w.lending->on_stage(w.request(1, source, {{0, 10}})).ok());
  peer.wait_lent(1);
  for (std::uint64_t n = 2; n < 2000; ++n) {
    BOOST_TEST_REQUIRE(w.lending->on_stage(w.request(n, source, {{0, 10}})).ok());
    w.lending->on_release({n, false});
  }
  BOOST_TEST(w.pool->now().waiting == 0u);
  BOOST_TEST(w.lending->requests() == 1u);
  w.lending->on_release({1, false});
  BOOST_TEST(w.lending->on_stage(w.request(3000, source, {{0, 10}})).ok());
  BOOST_TEST(is(peer.wait_lent(3000).code, errc::ok));
}

BOOST_AUTO_TEST_CASE(a_number_that_is_used_again_at_once_costs_no_chunk) {
  world w;
  auto source = w.expose_tensor(1000, access_mode::read);
  raw_peer peer{w};
  for (int i = 0; i < 3000; ++i) {
    // A request whose chunk is on its way may still have the number.
    if (!w.lending->on_stage(w.request(5, source, {{0, 10}})).ok())
      continue;
    w.lending->on_release({5, false});
    static_cast<void>(w.lending->on_stage(w.request(5, source, {{10, 10}})));
    w.lending->on_release({5, false});
  }
  BOOST_TEST(eventually([&] {
    w.lending->on_release({5, false});
    auto now = w.pool->now();
    return w.lending->requests() == 0 && now.waiting == 0 && now.free == now.chunks;
  }));
}

BOOST_AUTO_TEST_CASE(an_owner_that_takes_back_its_word_while_bytes_move_is_not_heard) {
  world w;
  auto source = w.expose_tensor(100, access_mode::read);
  std::promise<completion<transfer_report>> moving;
  w.carry = [&](transfer, completion<transfer_report> done) { moving.set_value(std::move(done)); };
  std::vector<std::byte> here(100);
  held_completion<transfer_report> done;
  w.submit(direction::read, source.handle, here, done);
  auto moved = moving.get_future().get();
  w.asking->on_staged({1, static_cast<std::uint8_t>(errc::io_error), "no", 0, {}});
  BOOST_TEST(!done.ready()); // a driver may still write to the memory
  moved(transfer_report{});
  BOOST_TEST(done.take().has_value());
  w.asking->on_staged({1, static_cast<std::uint8_t>(errc::io_error), "no", 0, {}});
}

BOOST_AUTO_TEST_CASE(an_owner_that_answers_senselessly_confuses_only_itself) {
  world w;
  auto source = w.expose_tensor(1000, access_mode::read, 1);
  BOOST_TEST((w.asking->on_hello({2, chunk_bytes, 1}).code() == errc::unsupported_version));
  BOOST_TEST((w.asking->on_hello({1, chunk_bytes, 1}).code() == errc::protocol_error));
  BOOST_TEST((check(hello{1, 0, 1}).code() == errc::protocol_error));
  BOOST_TEST((check(hello{1, chunk_bytes, 0}).code() == errc::protocol_error));
  BOOST_TEST((check(hello{1, ~0ull, 1}).code() == errc::protocol_error));
  w.asking->on_staged({77, 0, {}, 5, {}});
  w.asking->on_committed({77, 0, {}});
  std::vector<std::byte> here(1000);
  auto moved = w.move(direction::read, source.handle, here);
  BOOST_TEST(moved.has_value(), why(moved));
  BOOST_TEST((here == pattern(1000, 1)));
}

BOOST_AUTO_TEST_CASE(transfers_wait_for_an_owner_in_bounded_number) {
  auto options = small_options();
  options.chunks_max = 1;
  options.transfers_max = 2;
  world w{options};
  auto source = w.expose_tensor(1000, access_mode::read);
  std::vector<std::byte> room(1000);
  w.to_owner->deliver = [](message_kind, wire_reader&) { return status{}; }; // answers nothing
  std::vector<held_completion<transfer_report>> done(4);
  for (auto& d : done)
    w.submit(direction::read, source.handle, room, d);
  auto last = done.back().take();
  BOOST_TEST((!last && last.error().code() == errc::busy));
  w.asking->close({errc::peer_lost, "the test ends"});
  for (int i = 0; i < 3; ++i)
    BOOST_TEST((done[i].take().error().code() == errc::peer_lost));
}

BOOST_AUTO_TEST_CASE(a_peer_that_takes_no_answer_is_left) {
  world w;
  auto source = w.expose_tensor(1000, access_mode::read);
  w.to_peer->full = true;
  auto wrong_key = w.request(1, source, {});
  wrong_key.key.bytes[0] ^= 1;
  auto taken = w.lending->on_stage(std::move(wrong_key));
  BOOST_TEST(taken.ok());
  BOOST_TEST(w.to_peer->closed.load());
}

BOOST_AUTO_TEST_CASE(a_peer_that_takes_no_end_of_a_commit_is_left) {
  world w;
  w.to_peer->full = true;
  BOOST_TEST(w.lending->on_commit({77}).ok());
  BOOST_TEST(w.to_peer->closed.load());
}

BOOST_AUTO_TEST_CASE(an_owner_that_takes_no_release_is_left) {
  world w;
  w.to_owner->full = true;
  w.asking->on_staged({.number = 77, .code = 0, .detail = {}, .region = 1, .key = {}});
  BOOST_TEST(w.to_owner->closed.load());
}

BOOST_AUTO_TEST_SUITE_END()
