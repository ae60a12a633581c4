// Tests members that lie to a live driver, in messages that decode. Each lie is refused or ends
// that channel alone, and nothing is left of it. MILLRACE_TEST_VERBS=OURS/THEIRS names the devices.
// Run in the lab guest.
#include "verbs_liar.hpp"

#include <functional>
#include <future>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::net;
using namespace millrace::transport;
using vb::message_kind;

namespace {

vb::granted forged(std::uint64_t number, std::uint32_t generation, std::uint64_t bytes) {
  vb::granted m;
  m.number = number;
  m.region_bytes = bytes;
  m.pairs = {{0, generation}};
  m.ranges = {{bytes, 0x10000, {0x1234}}};
  return m;
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(verbs_lies, liar_and_victim)

BOOST_AUTO_TEST_CASE(what_no_driver_says_ends_its_channel_and_no_other) {
  using lie = std::function<void(liar_channel&)>;
  auto with_rail = [&](auto change) {
    return [this, change](liar_channel& to) {
      vb::hello m{vb::protocol_version, {rail()}};
      change(m.rails[0]);
      to.say(message_kind::hello, m);
    };
  };
  auto saying = [](message_kind kind, auto m) {
    return [kind, m](liar_channel& to) { to.say(kind, m); };
  };
  auto connect_of = [&](auto change) {
    vb::connect m{0, 1, 1, 1, rail(), {}, {}};
    change(m);
    return m;
  };
  auto granted_of = [&](auto change) {
    auto m = forged(1, 1, 4096);
    change(m);
    return m;
  };
  std::vector<lie> lies = {
    [](liar_channel& to) { to.deliver(std::vector<std::byte>(1, std::byte{1})); },
    [this](liar_channel& to) {
      to.say(
        message_kind::hello,
        vb::hello{vb::protocol_version, std::vector<vb::rail_info>(vb::rails_max + 1, rail())});
    },
    saying(message_kind::hello, vb::hello{vb::protocol_version + 1, {}}),
    with_rail([](auto& r) { r.mtu = 0; }),
    with_rail([](auto& r) { r.mtu = 1000; }),
    with_rail([](auto& r) { r.lid = 1u << 16; }),
    with_rail([](auto& r) { r.message_bytes_max = 1; }),
    saying(message_kind::connect, connect_of([](auto& m) { m.pair = vb::rails_max; })),
    saying(message_kind::connect, connect_of([](auto& m) { m.number = 1u << 24; })),
    saying(message_kind::connect, connect_of([](auto& m) { m.psn = ~0u; })),
    saying(message_kind::ready, vb::ready{vb::rails_max, 1}),
    saying(message_kind::lost, vb::lost{vb::rails_max, 1}),
    saying(message_kind::ask, vb::ask{1, 1, {}, 3}),
    saying(message_kind::granted, granted_of([](auto& m) { m.region_bytes = 5000; })),
    saying(message_kind::granted, granted_of([](auto& m) { m.ranges[0].length = ~0ull; })),
    saying(message_kind::granted, granted_of([](auto& m) { m.ranges[0].address = ~0ull; })),
    saying(message_kind::granted, granted_of([](auto& m) { m.ranges[0].keys.clear(); })),
    saying(message_kind::granted, granted_of([](auto& m) { m.pairs[0].pair = vb::rails_max; })),
    saying(message_kind::granted, granted_of([](auto& m) {
             m.pairs.resize(vb::rails_max + 1);
             m.ranges[0].keys.resize(vb::rails_max + 1);
           })),
  };
  for (std::size_t i = 0; i < lies.size(); ++i) {
    BOOST_TEST_CONTEXT("lie " << i) {
      lies[i](*line);
      BOOST_TEST(eventually([&] { return line->ended(); }));
      meet();
    }
  }
  others_go_on();
}

BOOST_AUTO_TEST_CASE(what_nobody_asked_for_changes_nothing) {
  greet_and_connect();
  greet(3); // a second greeting
  line->say(message_kind::granted, forged(1, generation, 4096));
  line->say(message_kind::granted, forged(~0ull, generation, 1ull << 60));
  line->say(message_kind::withdrawn, vb::withdrawn{7});
  line->say(
    message_kind::connect, vb::connect{1, 9, 1, 1, rail(), {}, {}}); // pairs that are not there
  line->say(message_kind::connect, vb::connect{vb::rails_max - 1, 1, 1, 1, rail(), {}, {}});
  line->say(message_kind::ready, vb::ready{63, 1});
  line->say(message_kind::ready, vb::ready{0, generation + 7}); // not joined yet
  line->say(message_kind::lost, vb::lost{63, 1});
  line->say(message_kind::lost, vb::lost{0, generation - 1});
  line->say(message_kind::lost, vb::lost{0, generation + 7});
  line->say(
    message_kind::connect, vb::connect{0, generation - 1, 1, 1, rail(), {}, {}}); // long gone
  BOOST_TEST(eventually([&] { return rail_state() == "up"; }));
  exposed_matrix m{{1, 4096, 0}, access_mode::read, 1};
  auto keys = ask(m.handle());
  BOOST_TEST_REQUIRE(keys.code == 0);
  BOOST_TEST_REQUIRE(keys.ranges.size() == 1u);
  BOOST_TEST(
    move(direction::read, keys.ranges[0].address, 4096, keys.ranges[0].keys.at(0)) ==
    IBV_WC_SUCCESS);
  BOOST_TEST(line->is_open());
  others_go_on();
}

BOOST_AUTO_TEST_CASE(a_peer_that_lost_its_end_is_believed_once) {
  greet_and_connect();
  for (int i = 0; i < 3; ++i) {
    BOOST_TEST_REQUIRE(eventually([&] { return rail_state() == "up"; }));
    line->say(message_kind::lost, vb::lost{0, generation});
    line->say(message_kind::lost, vb::lost{0, generation});
    BOOST_TEST(eventually([&] { return rail_state() == "connecting"; }));
    connect();
  }
  BOOST_TEST(line->is_open());
  others_go_on();
}

BOOST_AUTO_TEST_CASE(regions_of_others_are_not_to_be_had) {
  greet_and_connect();
  exposed_matrix readable{{1, 4096, 0}, access_mode::read, 1};
  exposed_matrix gone{{1, 4096, 0}, access_mode::read, 1};
  auto h = readable.handle(), old = gone.handle();
  gone.withdraw();
  auto other = h.key;
  other.bytes[15] ^= 1;
  std::vector<vb::granted> answers = {
    ask(h.region + 1000, h.key, direction::read), ask(h.region, other, direction::read),
    ask(h.region, {}, direction::read), ask(h.region, h.key, direction::write), ask(old)};
  for (auto& a : answers) {
    BOOST_TEST((errc_from_wire(a.code) == errc::permission_denied));
    BOOST_TEST(a.detail == answers[0].detail); // guessing learns nothing
    BOOST_TEST((a.pairs.empty() && a.ranges.empty()));
  }
  BOOST_TEST(victim->stats().windows == 0u);
  BOOST_TEST(line->is_open());
  others_go_on();
}

BOOST_AUTO_TEST_CASE(keys_open_what_was_granted_and_guessed_ones_open_nothing) {
  exposed_matrix readable{{1, 8192, 0}, access_mode::read, 1};
  exposed_matrix writable{{1, 8192, 0}, access_mode::write, 0};
  auto untouched = writable.dense();
  greet_and_connect();
  struct attempt {
    const char* what;
    direction dir;
    std::int64_t offset;
    std::uint64_t length;
    std::uint32_t key_change;
  };
  for (auto& a : std::vector<attempt>{
         {"before the range", direction::read, -1, 1, 0},
         {"beyond it", direction::read, 8191, 2, 0},
         {"far away", direction::read, 1 << 30, 64, 0},
         {"writing what may be read", direction::write, 0, 64, 0},
         {"the next key", direction::read, 0, 64, 1},
         {"another window", direction::read, 0, 64, 0x100},
         {"another one", direction::write, 0, 64, 0x200}}) {
    BOOST_TEST_CONTEXT(a.what) {
      auto keys = ask(readable.handle());
      BOOST_TEST_REQUIRE(keys.code == 0);
      auto& range = keys.ranges.at(0);
      auto key = range.keys.at(0);
      BOOST_TEST(move(direction::read, range.address, 8192, key) == IBV_WC_SUCCESS);
      auto outcome = move(
        a.dir, range.address + static_cast<std::uint64_t>(a.offset), a.length, key ^ a.key_change);
      BOOST_TEST(outcome == IBV_WC_REM_ACCESS_ERR);
      connect();
    }
  }
  BOOST_TEST((readable.dense() == pattern(8192, 1)));
  BOOST_TEST((writable.dense() == untouched));
  others_go_on();
}

BOOST_AUTO_TEST_CASE(an_owner_that_lies_harms_the_transfers_with_it_alone) {
  greet_and_connect();
  BOOST_TEST_REQUIRE(eventually([&] { return rail_state() == "up"; }));
  bulk_handle theirs;
  theirs.owner = line->peer().id;
  auto local = arena::create({.name = "liar", .size_bytes = 1u << 20}).value();
  auto read_from = [&](std::uint64_t offset, std::uint64_t length) {
    held_completion<transfer_report> done;
    ++theirs.region;
    victim->submit(
      {.dir = direction::read,
       .remote = theirs,
       .ops = {{.remote_offset = offset, .local = local->data(), .length = length}},
       .hold = local},
      done.callback());
    return done;
  };
  auto number = [&] { return line->hear<vb::ask>(message_kind::ask).number; };
  // Keys over queue pairs that are gone, or not there yet.
  for (auto off : {-1, 1}) {
    auto done = read_from(0, 4096);
    line->say(
      message_kind::granted, forged(number(), generation + static_cast<std::uint32_t>(off), 4096));
    auto ended = done.take();
    BOOST_TEST((!ended && ended.error().code() == errc::unavailable), why(ended));
  }
  // A region smaller than what is wanted of it.
  auto beyond = read_from(4000, 4096);
  line->say(message_kind::granted, forged(number(), generation, 4096));
  auto refused = beyond.take();
  BOOST_TEST((!refused && refused.error().code() == errc::permission_denied), why(refused));
  // An answer with another number, and then none.
  auto unanswered = read_from(0, 4096);
  line->say(message_kind::granted, forged(number() + 100, generation, 4096));
  auto late = unanswered.take();
  BOOST_TEST((!late && late.error().code() == errc::unavailable), why(late));
  // A later transfer asks anew.
  --theirs.region;
  auto later = read_from(0, 4096);
  auto refusal = vb::granted{};
  refusal.number = number();
  refusal.code = static_cast<std::uint8_t>(errc::permission_denied);
  line->say(message_kind::granted, refusal);
  auto told = later.take();
  BOOST_TEST((!told && told.error().code() == errc::permission_denied), why(told));
  // Keys that open nothing; then a region that has shrunk.
  auto shrinking = read_from(0, 1u << 20);
  line->say(message_kind::granted, forged(number(), generation, 1u << 20));
  BOOST_TEST(eventually([&] { return rail_state() != "up"; }));
  connect();
  line->say(message_kind::granted, forged(number(), generation, 4096));
  auto shrunk = shrinking.take();
  BOOST_TEST((!shrunk && shrunk.error().code() == errc::protocol_error), why(shrunk));
  // The keys open nothing, and the peer does not connect again: another driver may do better.
  auto left = read_from(0, 4096);
  line->say(message_kind::granted, forged(number(), generation, 4096));
  auto alone = left.take();
  BOOST_TEST_REQUIRE(!alone.has_value());
  BOOST_TEST((alone.error().code() == errc::unavailable), why(alone));
  BOOST_TEST(alone.error().detail().find("no connection within") != std::string::npos, why(alone));
  BOOST_TEST(line->is_open());
  others_go_on();
}

BOOST_AUTO_TEST_CASE(a_message_that_is_lost_ends_the_channel_and_what_waits_for_it) {
  greet_and_connect();
  bulk_handle theirs;
  theirs.owner = line->peer().id;
  theirs.region = 1;
  auto local = arena::create({.name = "own", .size_bytes = 1u << 20}).value();
  held_completion<transfer_report> done;
  line->fail_next({errc::busy, "the queue is full"});
  victim->submit(
    {.dir = direction::read,
     .remote = theirs,
     .ops = {{.local = local->data(), .length = 4096}},
     .hold = local},
    done.callback());
  auto ended = done.take();
  BOOST_TEST((!ended && ended.error().code() == errc::peer_lost), why(ended));
  BOOST_TEST(eventually([&] { return line->ended(); }));
  meet();
  others_go_on();
}

BOOST_AUTO_TEST_CASE(keys_that_fit_in_no_frame_are_refused) {
  greet_and_connect();
  BOOST_TEST_REQUIRE(eventually([&] { return rail_state() == "up"; }));
  exposed_matrix m{{1, 4096, 0}, access_mode::read, 1};
  line->fail_next({errc::invalid_argument, "more than the peer takes"});
  auto answer = ask(m.handle());
  BOOST_TEST((errc_from_wire(answer.code) == errc::unsupported), answer.detail);
  BOOST_TEST(line->is_open());
  BOOST_TEST(ask(m.handle()).code == 0);
  others_go_on();
}

BOOST_AUTO_TEST_CASE(many_rails_of_one_peer_are_bounded_and_let_go) {
  auto before = run("rdma resource show");
  greet(vb::rails_max);
  for (std::size_t i = 0; i < vb::rails_max; ++i)
    line->hear<vb::connect>(message_kind::connect);
  others_go_on();
  leave();
  BOOST_TEST(eventually([&] { return run("rdma resource show") == before; }));
  meet();
}

BOOST_AUTO_TEST_CASE(floods_leave_nothing_and_others_go_on) {
  others_go_on(); // what is made once, is there
  auto before = run("rdma resource show");
  exposed_matrix m{{1, 4096, 0}, access_mode::read, 1};
  auto h = m.handle();
  greet_and_connect();
  for (std::uint64_t i = 1; i <= 5'000; ++i)
    line->say(message_kind::ask, vb::ask{i, h.region, h.key, 1});
  others_go_on();
  for (std::uint32_t i = 1; i <= 5'000; ++i)
    line->say(message_kind::connect, vb::connect{0, generation + i, 1, 1, rail(), {}, {}});
  for (std::uint64_t i = 1; i <= 5'000; ++i)
    line->say(message_kind::withdrawn, vb::withdrawn{i});
  others_go_on();
  leave();
  m.withdraw();
  q.reset();
  BOOST_TEST(eventually([&] { return victim->stats().windows == 0; }));
  BOOST_TEST(eventually([&] { return run("rdma resource show") == before; }));
  meet();
}

BOOST_AUTO_TEST_CASE(more_than_can_be_looked_at_ends_the_channel) {
  greet_and_connect();
  // The completion of one transfer holds the driver's thread up.
  std::promise<void> go_on;
  auto held = go_on.get_future().share();
  std::atomic<bool> holding = false;
  exposed_matrix m{{1, 4096, 0}, access_mode::read, 1};
  auto local = arena::create({.name = "own", .size_bytes = 1u << 20}).value();
  bulk_handle theirs;
  theirs.owner = line->peer().id;
  victim->submit(
    {.dir = direction::read,
     .remote = theirs,
     .ops = {{.local = local->data(), .length = 4096}},
     .hold = local},
    [&](const result<transfer_report>&) {
      holding = true;
      held.wait();
    });
  line->say(message_kind::granted, [&] {
    auto refusal = vb::granted{};
    refusal.number = line->hear<vb::ask>(message_kind::ask).number;
    refusal.code = 1;
    return refusal;
  }());
  BOOST_TEST_REQUIRE(eventually([&] { return holding.load(); }));
  for (std::uint64_t i = 0; i < 1u << 18 && line->is_open(); ++i)
    line->say(message_kind::withdrawn, vb::withdrawn{i});
  BOOST_TEST(!line->is_open());
  go_on.set_value();
  BOOST_TEST(eventually([&] { return line->ended(); }));
  others_go_on();
}

BOOST_AUTO_TEST_SUITE_END()
