// Tests what only devices can show: windows that are closed, rails that fail and come back, nothing
// left behind. MILLRACE_TEST_VERBS=OURS/THEIRS names the devices of two drivers in this process.
// Run in the lab guest.
#include "two_drivers.hpp"

#include <millrace/core/future.hpp>
#include <millrace/tests/support/fake_channel.hpp>
#include <millrace/transport/verbs/peer_link.hpp>

#include <atomic>
#include <future>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::net;
using namespace millrace::transport;
namespace vb = millrace::transport::verbs;

namespace {

// Windows, on bare queue pairs.

/// Two queue pairs joined by hand: `a` reads and writes what `b` has opened.
struct two_queue_pairs {
  verbs_devices which = verbs_devices::from_environment();
  verbs_state state;
  verbs_options options;
  vb::device_list here, there;
  std::unique_ptr<vb::queue_pair> a, b;
  std::uint64_t posted = 0;

  two_queue_pairs() {
    options.devices = {which.ours.front()};
    here = vb::open_devices(options, state);
    options.devices = {which.theirs.front()};
    there = vb::open_devices(options, state);
    BOOST_REQUIRE((here.size() == 1 && there.size() == 1));
    join();
  }
  void join() {
    a = vb::queue_pair::open(here[0], options).value();
    b = vb::queue_pair::open(there[0], options).value();
    BOOST_REQUIRE((a->join(b->offer(), options).ok() && b->join(a->offer(), options).ok()));
  }

  ibv_wc_status wait(vb::queue_pair& q) {
    ibv_wc_status out = IBV_WC_GENERAL_ERR;
    BOOST_REQUIRE(eventually([&] {
      auto done = q.poll();
      if (!done.empty())
        out = done.front().status;
      return !done.empty();
    }));
    return out;
  }
  ibv_wc_status bind(vb::remote_key& key) {
    BOOST_REQUIRE(b->post_bind(++posted, true, key).ok());
    return wait(*b);
  }
  ibv_wc_status move(
    direction dir, vb::registered_memory& local, std::uint64_t length, const std::byte* remote,
    std::uint32_t key) {
    vb::request r;
    r.length = length;
    r.local = {{0, local.data(), length, 0}};
    BOOST_REQUIRE(a->post(
                     ++posted, true, dir, r, reinterpret_cast<std::uintptr_t>(remote), key,
                     {local.local_key(0)})
                    .ok());
    return wait(*a);
  }
};

// `before`: each registration.
vb::memory_sources sources_of(
  const vb::device_list& devices, std::function<void()> before = [] {}) {
  vb::registration_cache::hooks h;
  h.make = [devices, before](const vb::memory_range& r) -> result<std::shared_ptr<void>> {
    before();
    return vb::registered_memory::add(devices, r.data, r.size_bytes).map([](auto&& m) {
      return std::static_pointer_cast<void>(m);
    });
  };
  h.watch = [](auto&) { return false; };
  h.unwatch = [](auto&) {};
  h.unmapped = [](auto&) {};
  return {
    devices,
    std::make_shared<vb::arena_registry>(vb::registering_with(devices), std::chrono::seconds{1}),
    std::make_shared<vb::registration_cache>(vb::registration_cache::bounds{16, 1u << 30}, h)};
}

struct opened_region {
  two_queue_pairs q;
  std::vector<std::byte> source = pattern(3 * 4096 + 100, 5);
  std::vector<std::byte> target = std::vector<std::byte>(16'384);
  std::shared_ptr<vb::registered_memory> local;
  vb::memory_sources sources;
  std::shared_ptr<vb::grant_book> book;
  region exposed;
  vb::granted keys;
  std::byte* data = source.data() + 100; // neither it nor its end lies at a page
  std::uint64_t length = 2 * 4096 + 77;

  explicit opened_region(access_mode how)
    : local(vb::registered_memory::add(q.here, target.data(), target.size()).value()),
      sources(sources_of(q.there)),
      book(std::make_shared<vb::grant_book>(sources, q.options, [](std::uint64_t) {})) {
    tensor_view view{{"t", dtype::u8, {length}}, data, {}};
    exposed = expose({view}, how).value();
    auto h = exposed.handle();
    auto prepared = book
                      ->prepare(
                        h.region, find_region(h.region, h.key, how).value(),
                        static_cast<direction>(how), {{0, 1, 0, q.there[0]}})
                      .value();
    for (auto& key : prepared.unbound.at(0).keys)
      BOOST_TEST_REQUIRE(q.bind(*key) == IBV_WC_SUCCESS);
    keys = book->answer(prepared.g, std::move(prepared.unbound)).value();
    BOOST_TEST_REQUIRE(keys.ranges.size() == 1u);
  }

  ibv_wc_status read(std::int64_t from, std::uint64_t bytes) {
    return q.move(direction::read, *local, bytes, data + from, keys.ranges[0].keys[0]);
  }
};

} // namespace

BOOST_AUTO_TEST_SUITE(verbs_windows)

BOOST_AUTO_TEST_CASE(a_window_opens_exactly_the_regions_bytes) {
  opened_region r{access_mode::read};
  BOOST_TEST(r.read(0, r.length) == IBV_WC_SUCCESS);
  BOOST_TEST(std::equal(r.data, r.data + r.length, r.target.data()));
  std::fill(r.target.begin(), r.target.end(), std::byte{0});
  BOOST_TEST(r.read(1, r.length) == IBV_WC_REM_ACCESS_ERR);
  BOOST_TEST((r.target[0] == std::byte{0}));
}

BOOST_AUTO_TEST_CASE(not_a_byte_before_it) {
  opened_region r{access_mode::read};
  BOOST_TEST(r.read(-1, 1) == IBV_WC_REM_ACCESS_ERR);
}

BOOST_AUTO_TEST_CASE(what_may_be_read_cannot_be_written) {
  opened_region r{access_mode::read};
  auto before = r.source;
  BOOST_TEST(
    r.q.move(direction::write, *r.local, 100, r.data, r.keys.ranges[0].keys[0]) ==
    IBV_WC_REM_ACCESS_ERR);
  BOOST_TEST((r.source == before));
}

BOOST_AUTO_TEST_CASE(what_may_be_written_cannot_be_read) {
  opened_region r{access_mode::write};
  std::fill(r.target.begin(), r.target.end(), std::byte{9});
  BOOST_TEST(
    r.q.move(direction::write, *r.local, r.length, r.data, r.keys.ranges[0].keys[0]) ==
    IBV_WC_SUCCESS);
  BOOST_TEST((r.data[0] == std::byte{9} && r.data[r.length - 1] == std::byte{9}));
  BOOST_TEST((r.data[r.length] != std::byte{9}));
  BOOST_TEST(r.read(0, 100) == IBV_WC_REM_ACCESS_ERR);
}

BOOST_AUTO_TEST_CASE(once_withdrawn_the_old_key_opens_nothing) {
  opened_region r{access_mode::read};
  BOOST_TEST(r.read(0, 4096) == IBV_WC_SUCCESS);
  BOOST_TEST(r.book->windows() == 1u);
  std::fill(r.target.begin(), r.target.end(), std::byte{0});
  r.exposed.withdraw();
  BOOST_TEST(r.book->windows() == 0u);
  BOOST_TEST(r.sources.cache->entries() == 0u);
  BOOST_TEST(r.read(0, 1) == IBV_WC_REM_ACCESS_ERR);
  BOOST_TEST((r.target[0] == std::byte{0}));
}

BOOST_AUTO_TEST_CASE(withdrawing_ends_keys_that_were_not_told_yet) {
  opened_region r{access_mode::read};
  auto h = r.exposed.handle();
  r.q.join(); // whose keys are on their way
  auto prepared = r.book
                    ->prepare(
                      h.region, find_region(h.region, h.key, access_mode::read).value(),
                      direction::read, {{0, 2, 0, r.q.there[0]}})
                    .value();
  auto& key = *prepared.unbound.at(0).keys.at(0);
  BOOST_TEST_REQUIRE(r.q.bind(key) == IBV_WC_SUCCESS);
  r.exposed.withdraw();
  BOOST_TEST(r.book->windows() == 0u);
  BOOST_TEST(r.q.move(direction::read, *r.local, 1, r.data, key.key()) == IBV_WC_REM_ACCESS_ERR);
  BOOST_TEST(!r.book->answer(prepared.g, std::move(prepared.unbound)).has_value());
}

BOOST_AUTO_TEST_CASE(the_key_of_one_peer_is_nothing_to_another) {
  opened_region r{access_mode::read};
  r.q.join(); // as another peer would
  BOOST_TEST(r.read(0, 1) == IBV_WC_REM_ACCESS_ERR);
}

BOOST_AUTO_TEST_CASE(what_is_small_goes_inline_and_needs_no_local_key) {
  opened_region r{access_mode::write};
  auto send = [&](std::uint64_t length) {
    vb::request w;
    w.length = length;
    w.local = {{0, r.target.data(), length, 0}};
    auto nobodys = r.local->local_key(0) ^ 0x5a00;
    auto at = reinterpret_cast<std::uintptr_t>(r.data);
    BOOST_TEST_REQUIRE(
      r.q.a->post(++r.q.posted, true, direction::write, w, at, r.keys.ranges[0].keys[0], {nobodys})
        .ok());
    std::fill(r.target.begin(), r.target.end(), std::byte{1}); // it was copied at once
    return r.q.wait(*r.q.a);
  };
  std::fill(r.target.begin(), r.target.end(), std::byte{9});
  BOOST_TEST(send(r.q.options.inline_bytes_max) == IBV_WC_SUCCESS);
  BOOST_TEST(
    (r.data[0] == std::byte{9} && r.data[r.q.options.inline_bytes_max - 1] == std::byte{9}));
  // Devices differ in what they call it.
  BOOST_TEST(send(r.q.options.inline_bytes_max + 1) != IBV_WC_SUCCESS);
}

BOOST_AUTO_TEST_CASE(a_closed_queue_pair_lets_nobody_in_whoever_holds_it) {
  opened_region r{access_mode::read};
  BOOST_TEST(r.read(0, 4096) == IBV_WC_SUCCESS);
  r.q.b->close();
  BOOST_TEST(r.book->windows() == 0u);
  BOOST_TEST(r.read(0, 4096) == IBV_WC_RETRY_EXC_ERR);
}

BOOST_AUTO_TEST_SUITE_END()

// Large transfers take seconds, so that they can be met in their middle.
static void slowly(verbs_options& ours, verbs_options&) {
  ours.message_bytes_max = 64u << 10;
  ours.queue_depth = 4;
  ours.ack_timeout_ms = 200;
}
static void slow_down(int port) {
  run("ip netns exec sw tc qdisc add dev port" + std::to_string(port) + " root netem delay 10ms");
}

BOOST_AUTO_TEST_SUITE(verbs_links)

BOOST_AUTO_TEST_CASE(an_idle_driver_sleeps_and_wakes) {
  two_drivers d;
  for (std::uint64_t round = 0; round < 3; ++round) {
    BOOST_TEST(eventually([] { return states_of_threads("mr.verbs") == "SS"; }));
    d.read_and_check(100'000, round);
  }
}

BOOST_AUTO_TEST_CASE(most_requests_need_no_completion) {
  two_drivers d{[](verbs_options& ours, verbs_options&) { ours.message_bytes_max = 4096; }};
  d.read_and_check(8 << 20, 1);
  BOOST_TEST(eventually([&] { return d.ours->stats().rails[0].requests >= 2048; }));
  auto s = d.ours->stats().rails[0];
  BOOST_TEST(4 * s.completions < s.requests);
}

// A process that asks many peers at once would have more bytes coming than the port takes. Requests
// that are alone on their rail, each with a completion, show that the bound holds.
BOOST_AUTO_TEST_CASE(a_port_has_so_many_bytes_under_way_and_each_rail_one_request) {
  two_drivers d{[](verbs_options& ours, verbs_options&) {
    ours.message_bytes_max = 64u << 10;
    ours.port_inflight_bytes_max = 64u << 10;
  }};
  d.read_and_check(8 << 20, 1);
  BOOST_TEST(eventually([&] { return d.ours->stats().rails[0].requests >= 128; }));
  auto s = d.ours->stats().rails[0];
  BOOST_TEST(s.completions >= s.requests);
}

BOOST_AUTO_TEST_CASE(loss_and_delay_cost_time_and_nothing_else) {
  two_drivers d;
  run("ip netns exec sw tc qdisc add dev port0 root netem delay 2ms loss 1%");
  for (std::uint64_t salt = 1; salt <= 3; ++salt)
    d.read_and_check(2 << 20, salt);
  run("ip netns exec sw tc qdisc del dev port0 root");
  // The link fails in the middle of a transfer.
  auto expected = pattern(8 << 20, 4);
  exposed_matrix m{{1, 8 << 20, 0}, access_mode::read, 4};
  auto done = d.start_read(m.handle(), 8 << 20);
  BOOST_TEST(eventually([&] { return d.memory->data()[0] == expected[0]; }));
  run("ip netns exec sw tc qdisc add dev port0 root netem delay 1ms loss 1%");
  auto moved = done.take();
  BOOST_TEST_REQUIRE(moved.has_value(), why(moved));
  BOOST_TEST(std::equal(expected.begin(), expected.end(), d.memory->data()));
  run("ip netns exec sw tc qdisc del dev port0 root");
  d.read_and_check(2 << 20, 9);
}

BOOST_AUTO_TEST_CASE(withdrawing_under_way_ends_the_transfer_and_no_other) {
  two_drivers d{slowly};
  slow_down(0);
  exposed_matrix lasting{{1, 4096, 0}, access_mode::read, 2};
  auto first = pattern(1, 1)[0];
  for (int round = 0; round < 5; ++round) {
    exposed_matrix m{{1, 16 << 20, 0}, access_mode::read, 1};
    auto large = d.start_read(m.handle(), 16 << 20);
    held_completion<transfer_report> small;
    auto* at = d.memory->data() + (20 << 20);
    d.ours->submit(
      {.dir = direction::read,
       .remote = lasting.handle(),
       .ops = {{.local = at, .length = 4096}},
       .hold = d.memory},
      small.callback());
    // At first while its keys are asked for, then in its middle.
    BOOST_TEST(eventually([&] { return round == 0 || d.memory->data()[0] == first; }));
    m.withdraw();
    auto ended = large.take();
    BOOST_TEST((!ended && ended.error().code() == errc::permission_denied), why(ended));
    auto other = small.take();
    BOOST_TEST(other.has_value(), why(other));
    auto expected = pattern(4096, 2);
    BOOST_TEST(std::equal(expected.begin(), expected.end(), at));
  }
  d.read_and_check(1 << 20, 3);
}

BOOST_AUTO_TEST_CASE(of_several_links_to_a_peer_one_that_is_up_is_taken) {
  two_drivers d;
  std::vector<std::shared_ptr<fake_channel>> mute;
  auto on_loop = [&](auto what) {
    promise<int> ran;
    d.loop->post([&] {
      for (auto& c : mute)
        what(*c);
      ran.set(0);
    });
    ran.get_future().get();
  };
  for (int i = 0; i < 16; ++i)
    mute.push_back(std::make_shared<fake_channel>(this_peer(), "mute"));
  on_loop([&](channel& c) { d.ours->peer_opened(c.shared_from_this()); });
  BOOST_TEST(d.ours->reaches(this_peer()));
  d.read_and_check(1 << 20, 1);
  on_loop([&](channel& c) { d.ours->peer_closed(c, {errc::peer_lost, "the test ends it"}); });
}

BOOST_AUTO_TEST_CASE(a_peer_that_goes_while_its_memory_is_registered_keeps_nobody_waiting) {
  verbs_options options;
  options.devices = {verbs_devices::from_environment().theirs.front()};
  options.windows_checked = true;
  verbs_state state;
  auto devices = vb::open_devices(options, state);
  std::promise<void> go_on;
  auto held = go_on.get_future().share();
  std::atomic<bool> registering = false, returned = false, closed = false;
  auto parts = vb::link_parts{
    vb::completion_thread::start(devices, options).value(),
    vb::setup_pool::start(1).value(),
    nullptr,
    {},
    std::make_shared<mover_pool>(2),
    {},
    sources_of(
      devices,
      [&, held] {
        registering = true;
        held.wait();
      }),
    options};
  auto link =
    vb::peer_link::make(std::make_shared<fake_channel>(random_id<peer_id>(), "goes"), parts);
  link->open();
  exposed_matrix m{{1, 8192, 0}, access_mode::read, 1};
  byte_buffer body;
  wire_writer{body}(vb::message_kind::ask, vb::ask{1, m.handle().region, m.handle().key, 1});
  BOOST_TEST_REQUIRE(link->take(body).ok());
  BOOST_TEST_REQUIRE(eventually([&] { return registering.load(); }));
  std::thread loop{[&] {
    link->close({errc::peer_lost, "gone"}, [&] { closed = true; });
    returned = true;
  }};
  BOOST_TEST(eventually([&] { return returned.load(); }, 20));
  BOOST_TEST(!closed);
  go_on.set_value();
  loop.join();
  BOOST_TEST(eventually([&] { return closed.load(); }));
  m.withdraw();
  BOOST_TEST(link->stats().windows == 0u);
  BOOST_TEST(parts.sources.cache->entries() == 0u);
  parts.thread->stop();
}

BOOST_AUTO_TEST_CASE(a_write_whose_digests_lag_is_not_given_up) {
  constexpr std::uint64_t length = 100'000;
  two_drivers d{[](verbs_options& ours, verbs_options&) { ours.op_timeout_ms = 3000; }};
  exposed_matrix m{{1, length, 0}, access_mode::write, 0};
  auto write = [&](std::uint64_t salt, bool digests) {
    held_completion<transfer_report> done;
    auto bytes = pattern(length, salt);
    std::copy(bytes.begin(), bytes.end(), d.memory->data());
    d.ours->submit(
      {.dir = direction::write,
       .remote = m.handle(),
       .ops = {{.local = d.memory->data(), .length = length}},
       .digests = digests,
       .hold = d.memory},
      done.callback());
    return done;
  };
  BOOST_TEST_REQUIRE(write(1, false).take().has_value()); // the keys are there now
  std::promise<void> go_on;
  auto held = go_on.get_future().share();
  std::atomic<int> holding = 0;
  d.movers->submit(
    2, [&, held](std::uint32_t) { ++holding, held.wait(); }, [] {});
  BOOST_TEST_REQUIRE(eventually([&] { return holding == 2; }));
  auto done = write(2, true);
  BOOST_TEST(eventually([&] { return m.dense() == pattern(length, 2); }));
  usleep(7'000'000); // more than twice op_timeout
  go_on.set_value();
  auto moved = done.take();
  BOOST_TEST_REQUIRE(moved.has_value(), why(moved));
  BOOST_TEST(!moved->digests.empty());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(verbs_rails)

namespace {

std::uint64_t bytes_over(const two_drivers& d, std::size_t rail) {
  return d.ours->stats().rails.at(rail).bytes;
}

} // namespace

BOOST_AUTO_TEST_CASE(large_transfers_use_every_rail_and_small_ones_take_turns) {
  two_drivers d;
  BOOST_TEST_REQUIRE(d.ours->stats().rails.size() == 2u);
  d.read_and_check(16 << 20, 1);
  BOOST_TEST(eventually([&] { return bytes_over(d, 0) + bytes_over(d, 1) >= 16u << 20; }));
  BOOST_TEST(bytes_over(d, 0) >= 1u << 20);
  BOOST_TEST(bytes_over(d, 1) >= 1u << 20);
  for (std::uint64_t i = 0; i < 4; ++i)
    d.read_and_check(4096, i);
  auto s = d.ours->stats();
  BOOST_TEST((s.rails[0].rate_bytes_per_s > 0 && s.rails[1].rate_bytes_per_s > 0));
}

namespace {

// Neither side sends anything once the link is down and nothing is under way.
void fails_and_comes_back(bool under_way) {
  two_drivers d;
  exposed_matrix m{{1, 20 << 20, 0}, access_mode::read, 4};
  auto expected = pattern(20 << 20, 4);
  // The submitter's interface and the owner's: the one is told by its device, the other by its
  // peer.
  for (auto link : {0, 2}) {
    auto done = d.start_read(m.handle(), 20 << 20);
    BOOST_TEST(
      eventually([&] { return under_way ? d.memory->data()[0] == expected[0] : done.ready(); }));
    link_down(link);
    auto moved = done.take();
    BOOST_TEST_REQUIRE(moved.has_value(), link << ": " << why(moved));
    BOOST_TEST(std::equal(expected.begin(), expected.end(), d.memory->data()));
    BOOST_TEST(eventually([&] { return d.up() == 1; }), link);
    d.read_and_check(5 << 20, 7);
    link_up(link);
    BOOST_TEST(
      eventually([&] { return d.up() == 2; }),
      link << ": " << d.ours->stats().rails[0].last_error << "; "
           << d.theirs->stats().rails[0].last_error);
    auto before = std::pair{bytes_over(d, 0), bytes_over(d, 1)};
    d.read_and_check(16 << 20, 8);
    BOOST_TEST(eventually(
      [&] { return bytes_over(d, 0) > before.first && bytes_over(d, 1) > before.second; }));
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(a_rail_that_fails_under_way_is_left_and_comes_back) {
  fails_and_comes_back(true);
}

BOOST_AUTO_TEST_CASE(a_rail_that_fails_at_rest_is_left_and_comes_back) {
  fails_and_comes_back(false);
}

BOOST_AUTO_TEST_CASE(without_any_rail_transfers_end_and_the_driver_reaches_nobody) {
  two_drivers d{slowly};
  slow_down(0);
  slow_down(1);
  exposed_matrix m{{1, 20 << 20, 0}, access_mode::read, 4};
  auto first = pattern(1, 4)[0];
  auto done = d.start_read(m.handle(), 20 << 20);
  BOOST_TEST(eventually([&] { return d.memory->data()[0] == first; }));
  link_down(0);
  link_down(1);
  auto ended = done.take();
  BOOST_TEST((!ended && ended.error().code() == errc::unavailable), why(ended));
  BOOST_TEST(eventually([&] { return !d.ours->reaches(this_peer()); }));
  auto s = d.ours->stats();
  BOOST_TEST(s.rails[0].state != "up");
  BOOST_TEST(!s.rails[0].last_error.empty());
}

BOOST_AUTO_TEST_SUITE_END()
