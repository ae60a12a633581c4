// A process of the simulated machine maps memory of another one, as the shm driver does.
#include <millrace/tests/sim/network.hpp>
#include <millrace/tests/support/exposed_matrix.hpp>
#include <millrace/tests/support/fabric_handler.hpp>
#include <millrace/tests/support/held_completion.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <optional>

using namespace millrace;
using namespace millrace::sim;
using namespace millrace::testing;
using namespace millrace::transport;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t size_bytes = 10'000;

// What runs in a process.
struct side {
  std::shared_ptr<net::io_loop> loop;
  std::shared_ptr<fabric> moves;
  std::shared_ptr<fabric_handler> hears;

  explicit side(simulated_network& net)
    : loop(net.make_loop({}).value()), moves(net.make_fabric({}, loop).value()),
      hears(std::make_shared<fabric_handler>(moves)) {}
};

struct two_processes {
  world in{30};
  std::shared_ptr<simulated_network> net = std::make_shared<simulated_network>(in);
  process& owner = in.start_process("owner");
  process& reader = in.start_process("reader");
  std::optional<side> theirs, ours;
  std::shared_ptr<net::listener> listening;
  std::shared_ptr<net::channel> line;
  std::unique_ptr<exposed_matrix> memory;

  two_processes() {
    in.as(owner, [&] {
      theirs.emplace(*net);
      listening = net
                    ->listen(
                      theirs->loop, {.address = "unix:/owner", .allow_uids = {}}, {},
                      [this](const net::peer_info&) { return theirs->hears; })
                    .value();
      memory = std::make_unique<exposed_matrix>(
        matrix_shape{1, size_bytes, 0, arena_sharing::read_only}, access_mode::read, 3);
    });
    in.as(reader, [&] {
      ours.emplace(*net);
      net->connect(
        ours->loop, "unix:/owner", {}, ours->hears, [this](auto c) { line = c.value(); });
    });
    in.run_for(1s);
    BOOST_TEST_REQUIRE(line != nullptr);
  }
  ~two_processes() {
    in.as(reader, [&] {
      line.reset();
      ours->loop->stop();
      ours.reset();
    });
    end_owner();
  }

  void end_owner() {
    in.as(owner, [&] {
      memory.reset();
      listening.reset();
      if (theirs)
        theirs->loop->stop();
      theirs.reset();
    });
  }

  held_completion<mapped_region> map(const bulk_handle& remote) {
    held_completion<mapped_region> done;
    in.as(reader, [&] { ours->moves->map(remote, done.callback()); });
    return done;
  }
};

bool shows(const mapped_region& m, std::uint64_t salt) {
  auto expected = pattern(size_bytes, salt);
  return std::equal(expected.begin(), expected.end(), m.data, m.data + m.size_bytes);
}

} // namespace

BOOST_AUTO_TEST_SUITE(sim)

BOOST_FIXTURE_TEST_CASE(
  mapped_regions_are_answered_by_messages_and_outlive_their_owner, two_processes) {
  auto asked = map(memory->handle());
  BOOST_TEST(!asked.ready());
  in.run_for(1s);
  BOOST_TEST_REQUIRE(asked.ready());
  auto mapped = asked.take();
  BOOST_TEST_REQUIRE(mapped.has_value(), why(mapped));
  BOOST_TEST(shows(*mapped, 3));
  memory->fill(4);
  BOOST_TEST(shows(*mapped, 4));
  auto wrong = memory->handle();
  wrong.key.bytes[0] ^= 1;
  auto refused = map(wrong);
  in.run_for(1s);
  BOOST_TEST((refused.take().error().code() == errc::permission_denied));
  net->cut(owner, reader);
  auto late = map(memory->handle());
  in.run_for(60s);
  BOOST_TEST_REQUIRE(late.ready());
  auto lost = late.take();
  BOOST_TEST_REQUIRE(!lost.has_value());
  BOOST_TEST((lost.error().code() == errc::peer_lost), why(lost));
  in.kill(owner);
  end_owner();
  in.bury(owner);
  BOOST_TEST(shows(*mapped, 4));
}

BOOST_AUTO_TEST_SUITE_END()
