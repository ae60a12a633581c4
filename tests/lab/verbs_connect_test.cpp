// Queue pairs connected by librdmacm: what the channel announced gets through, and nothing else.
// MILLRACE_TEST_VERBS=OURS/THEIRS names the devices. Run in the lab guest.
#include "two_drivers.hpp"

#include <millrace/core/future.hpp>
#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/tests/support/kept_log.hpp>
#include <millrace/transport/verbs/cm_connection.hpp>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::net;
using namespace millrace::transport;
namespace vb = millrace::transport::verbs;

namespace {

/// One side of a pair that is to be connected, without a driver.
struct side {
  std::shared_ptr<int> lane = std::make_shared<int>(); // events and joins take turns in it
  std::shared_ptr<vb::queue_pair> q;
  std::shared_ptr<vb::cm_connection> cm;
  vb::connect announced;
};

status outcome_of(const future<void>& joined) {
  return joined.result() ? status{} : joined.result().error();
}

struct two_sides {
  verbs_devices which = verbs_devices::from_environment();
  verbs_options options;
  std::shared_ptr<io_loop> loop = io_loop::start({}).value();
  std::shared_ptr<vb::cm_hub> hub = vb::cm_hub::open(loop).value();
  std::shared_ptr<vb::setup_pool> setup = vb::setup_pool::start(4).value();
  vb::device_list here, there;
  side asks, listens;

  two_sides() {
    verbs_state state;
    options.devices = {which.ours.front()};
    here = vb::open_devices(options, state);
    options.devices = {which.theirs.front()};
    there = vb::open_devices(options, state);
    BOOST_REQUIRE((here.size() == 1 && there.size() == 1));
    asks = open(here[0], false);
    listens = open(there[0], true);
  }
  ~two_sides() {
    setup->stop();
    hub->close();
    loop->stop();
  }

  side open(const std::shared_ptr<vb::device>& d, bool passive) {
    side s;
    s.q = vb::queue_pair::open(d, options).value();
    s.cm = vb::cm_connection::open({hub, d, "peer", options, setup, s.lane.get()}, passive).value();
    s.announced = s.q->offer();
    s.announced.pair = 3;
    s.announced.generation = 7;
    s.cm->announce(s.announced);
    return s;
  }

  /// `theirs`: what the channel is said to have brought.
  future<void> join(const side& s, const vb::connect& theirs) {
    promise<void> done;
    setup->post(s.lane.get(), vb::setup_pool::turn::first, [cm = s.cm, q = s.q, theirs, done] {
      cm->join(q, theirs, [done](const status& how) {
        done.set(how.ok() ? result<void>{} : result<void>{fail(how)});
      });
    });
    return done.get_future();
  }

  /// A request by somebody else, on the way of whoever asks; how it ended.
  status request(const vb::connect& with) {
    auto stranger = open(here[0], false);
    return outcome_of(join(stranger, with));
  }

  void join_both() {
    auto first = join(asks, listens.announced);
    auto second = join(listens, asks.announced);
    auto asked = outcome_of(first);
    auto accepted = outcome_of(second);
    BOOST_TEST_REQUIRE(asked.ok(), asked.to_string());
    BOOST_TEST_REQUIRE(accepted.ok(), accepted.to_string());
  }
  bool carries() {
    BOOST_TEST_REQUIRE(asks.q->post_probe(1).ok());
    return eventually([&] {
      auto done = asks.q->poll();
      return !done.empty() && done.front().status == IBV_WC_SUCCESS;
    });
  }
};

bool was_refused(const status& s) { return s.detail().find("REJECTED") != std::string::npos; }

void both_by_rdma_cm(verbs_options& a, verbs_options& b) {
  a.connect = b.connect = verbs_connect::rdma_cm;
}

} // namespace

BOOST_AUTO_TEST_SUITE(verbs_connects)

BOOST_AUTO_TEST_CASE(what_the_channel_announced_is_joined) {
  two_sides t;
  BOOST_TEST(!t.listens.announced.cm_address.empty());
  BOOST_TEST(t.asks.announced.cm_address.empty());
  t.join_both();
  BOOST_TEST(t.carries());
}

BOOST_AUTO_TEST_CASE(strangers_are_refused_and_named_once) {
  kept_log lines;
  auto before = refusals();
  two_sides t;
  auto guessed = t.listens.announced;
  for (std::uint8_t i = 0; i < 12; ++i) {
    ++guessed.token.bytes[i];
    auto outcome = t.request(guessed);
    BOOST_TEST(was_refused(outcome), outcome.to_string());
  }
  BOOST_TEST(refusals() - before == 12u);
  BOOST_TEST(lines.count("without the token") == 1u, lines.text());
  // Nobody else has lost anything by it.
  t.join_both();
  BOOST_TEST(t.carries());
}

BOOST_AUTO_TEST_CASE(the_token_is_for_one_queue_pair_and_once) {
  kept_log lines;
  for (int what = 0; what < 3; ++what) {
    two_sides t;
    auto expected = t.asks.announced;
    ++(what == 0 ? expected.number : what == 1 ? expected.pair : expected.generation);
    auto accepted = t.join(t.listens, expected);
    auto asked = outcome_of(t.join(t.asks, t.listens.announced));
    BOOST_TEST(was_refused(asked), asked.to_string());
    // It still waits for the right one.
    BOOST_TEST(!accepted.ready());
  }
  two_sides t;
  t.join_both();
  auto outcome = t.request(t.listens.announced);
  BOOST_TEST(was_refused(outcome), outcome.to_string());
  BOOST_TEST(t.carries());
}

BOOST_AUTO_TEST_CASE(letting_go_before_the_partner_comes_leaves_nothing) {
  two_sides t;
  auto before = run("rdma resource show");
  for (int i = 0; i < 50; ++i) {
    auto waits = t.open(t.there[0], true);
    auto asks = t.open(t.here[0], false);
    static_cast<void>(t.join(asks, waits.announced));
    // In their lanes, as the driver does it.
    for (auto* s : {&waits, &asks}) {
      promise<int> gone;
      t.setup->post(s->lane.get(), vb::setup_pool::turn::first, [s, gone] {
        s->cm = nullptr;
        s->q = nullptr;
        gone.set(0);
      });
      gone.get_future().get();
    }
  }
  BOOST_TEST(eventually([&] { return run("rdma resource show") == before; }, 10));
}

BOOST_AUTO_TEST_CASE(both_sides_by_setting) {
  two_drivers d{both_by_rdma_cm};
  for (auto& driver : {d.ours, d.theirs})
    for (auto& r : driver->stats().rails)
      BOOST_TEST(r.connected_by == "rdma_cm");
  d.read_and_check(3 << 20, 1);
  d.disconnect();
  d.connect();
  d.read_and_check(3 << 20, 2);
}

BOOST_AUTO_TEST_CASE(one_side_alone_connects_over_the_channel_and_both_say_why) {
  kept_log lines;
  configure_log("info");
  {
    two_drivers d{[](verbs_options& ours, verbs_options& theirs) {
      ours.connect = verbs_connect::channel;
      theirs.connect = verbs_connect::rdma_cm;
    }};
    for (auto& driver : {d.ours, d.theirs})
      for (auto& r : driver->stats().rails)
        BOOST_TEST(r.connected_by == "channel");
    d.read_and_check(1 << 20, 1);
  }
  configure_log("warn");
  BOOST_TEST(lines.count("queue pairs are connected over the channel peer=owner") == 1u);
  BOOST_TEST(lines.count("queue pairs are connected over the channel peer=submitter") == 1u);
}

BOOST_AUTO_TEST_CASE(on_a_silent_network_attempts_end_in_time_and_go_on) {
  two_drivers d{[](verbs_options& a, verbs_options& b) {
    both_by_rdma_cm(a, b);
    a.connect_timeout_ms = b.connect_timeout_ms = 1000;
  }};
  exposed_matrix m{{1, 4096, 0}, access_mode::read, 1};
  run("ip netns exec sw tc qdisc add dev port0 root netem loss 100%");
  auto ended = d.start_read(m.handle(), 4096).take();
  BOOST_TEST(!ended.has_value());
  BOOST_TEST(eventually([&] { return d.ours->stats().rails[0].failures >= 4; }));
  BOOST_TEST(d.up() == 0u);
  auto why_not = d.ours->stats().rails[0].last_error;
  BOOST_TEST(why_not.find("within 1000 ms") != std::string::npos, why_not);
  run("ip netns exec sw tc qdisc del dev port0 root");
  BOOST_TEST(eventually([&] { return d.up() == 1; }));
  d.read_and_check(1 << 20, 4);
}

BOOST_AUTO_TEST_SUITE_END()
