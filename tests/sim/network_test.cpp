// Tests the simulated network itself: what the ends of a channel hear when the way between them is
// cut.
#include <millrace/tests/sim/network.hpp>

#include <boost/test/unit_test.hpp>

#include <functional>
#include <memory>

using namespace millrace;
using namespace millrace::sim;
using namespace std::chrono_literals;

namespace {

struct counting_handler final : net::channel_handler {
  void on_open(const std::shared_ptr<net::channel>& c) override { line = c; }
  void on_frame(net::channel&, net::frame) override { ++frames; }
  void on_close(net::channel&, const status&) override {
    ++closings;
    line.reset();
    if (at_end)
      at_end();
  }

  std::shared_ptr<net::channel> line;
  std::uint32_t frames = 0, closings = 0;
  std::function<void()> at_end;
};

struct two_ends {
  world in{31};
  std::shared_ptr<simulated_network> net = std::make_shared<simulated_network>(in);
  process& owner = in.start_process("owner");
  process& asker = in.start_process("asker");
  std::shared_ptr<counting_handler> theirs = std::make_shared<counting_handler>(),
                                    ours = std::make_shared<counting_handler>();
  std::shared_ptr<net::io_loop> their_loop, our_loop;
  std::shared_ptr<net::listener> listening;

  two_ends() {
    in.as(owner, [&] {
      their_loop = net->make_loop({}).value();
      listening = net
                    ->listen(
                      their_loop, {.address = "unix:/owner", .allow_uids = {}}, {},
                      [this](const net::peer_info&) { return theirs; })
                    .value();
    });
    in.as(asker, [&] {
      our_loop = net->make_loop({}).value();
      net->connect(our_loop, "unix:/owner", {}, ours, [](auto) {});
    });
    in.run_for(1s);
    BOOST_TEST_REQUIRE(ours->line != nullptr);
  }

  void send() {
    auto sent = in.as(asker, [&] { return ours->line->send(net::frame_kind::request, 1, {}); });
    BOOST_TEST(sent.ok());
  }
};

} // namespace

BOOST_AUTO_TEST_SUITE(sim)

BOOST_FIXTURE_TEST_CASE(ends_of_channels_both_give_up_while_the_way_is_cut, two_ends) {
  net->cut(owner, asker);
  send();
  in.run_for(60s);
  BOOST_TEST(ours->closings == 1u);
  BOOST_TEST(theirs->closings == 1u);
  BOOST_TEST(theirs->frames == 0u);
  BOOST_TEST(net->connections() == 0u);
}

BOOST_FIXTURE_TEST_CASE(ends_of_channels_hear_that_the_other_gave_up, two_ends) {
  net->cut(owner, asker);
  send();
  ours->at_end = [&] { net->heal_all(); }; // before the other end gives up, too
  in.run_for(60s);
  BOOST_TEST(ours->closings == 1u);
  BOOST_TEST(theirs->frames == 1u); // that was held back
  BOOST_TEST(theirs->closings == 1u);
  BOOST_TEST(net->connections() == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
