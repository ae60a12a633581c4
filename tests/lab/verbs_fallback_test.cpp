// Tests how real drivers take over from each other. tcp ends what verbs cannot, and verbs has its
// turn again. MILLRACE_TEST_VERBS=OURS/THEIRS names the devices of two fabrics in this process. Run
// in the lab guest.
#include "two_drivers.hpp"

#include <millrace/tests/support/driver_reports.hpp>
#include <millrace/tests/support/fabric_handler.hpp>
#include <millrace/tests/support/kept_log.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::net;
using namespace millrace::transport;

namespace {

/// A submitter and an owner with drivers of both kinds.
struct two_fabrics {
  verbs_devices which = verbs_devices::from_environment();
  scratch_directory dir;
  std::shared_ptr<io_loop> loop = io_loop::start({}).value();
  std::shared_ptr<arena> memory =
    arena::create({.name = "lab", .size_bytes = lab_arena_bytes}).value();
  std::shared_ptr<fabric> ours = make(which.ours), theirs = make(which.theirs);
  std::shared_ptr<listener> listening;
  std::shared_ptr<channel> line;

  two_fabrics() {
    auto handler = std::make_shared<fabric_handler>(theirs);
    listener_options where;
    where.address = "unix:" + dir.path() + "/s.sock";
    listening = listener::open(loop, where, {.local_name = "owner"}, [handler](const peer_info&) {
                  return handler;
                }).value();
    held_completion<std::shared_ptr<channel>> opened;
    net::connect(
      loop, listening->address(), {.local_name = "submitter"},
      std::make_shared<fabric_handler>(ours), opened.callback());
    line = opened.take().value();
    BOOST_TEST_REQUIRE(eventually([&] { return rail("state") == "up"; }));
  }
  ~two_fabrics() {
    line->close({errc::cancelled, "the test ends it"});
    listening = nullptr;
    loop->stop();
  }

  std::shared_ptr<fabric> make(const std::vector<std::string>& devices) {
    fabric_options o;
    o.prefer = {"verbs", "tcp"};
    o.retry_after_ms = 1000;
    o.movers = 2;
    o.drivers.edit<tcp_options>().listen = {"127.0.0.1:0"};
    auto& verbs = o.drivers.edit<verbs_options>() = with_devices(devices);
    verbs.connect_timeout_ms = 2000;
    // Slow enough that a large transfer can be met in its middle.
    verbs.message_bytes_max = 64u << 10;
    verbs.queue_depth = 4;
    verbs.ack_timeout_ms = 100;
    return fabric::create(o, loop).value();
  }

  /// What the report of the first rail says under a name; empty without a rail.
  std::string rail(const std::string& name) const {
    auto said = reported(*ours, name);
    return said.empty() ? "" : said.front();
  }
  held_completion<transfer_report> start_read(exposed_matrix& m, std::uint64_t length) {
    std::fill_n(memory->data(), length, std::byte{0});
    held_completion<transfer_report> done;
    ours->submit(
      {.dir = direction::read,
       .remote = m.handle(),
       .ops = {{.local = memory->data(), .length = length}},
       .hold = memory},
      done.callback());
    return done;
  }
  /// Which driver brought the bytes, all of them.
  std::string carrier_of(std::uint64_t length, std::uint64_t salt) {
    exposed_matrix m{{1, length, 0}, access_mode::read, salt};
    return carrier_of(start_read(m, length), length, salt);
  }
  std::string carrier_of(
    held_completion<transfer_report> done, std::uint64_t length, std::uint64_t salt) {
    auto moved = done.take();
    BOOST_TEST_REQUIRE(moved.has_value(), why(moved));
    auto expected = pattern(length, salt);
    BOOST_TEST(std::equal(expected.begin(), expected.end(), memory->data()));
    return std::string{moved->driver};
  }

  /// `breaks` in the middle of a transfer, then `mends`.
  template <class Breaks, class Mends>
  void outlive(Breaks breaks, Mends mends) {
    constexpr std::uint64_t length = 20 << 20;
    run("ip netns exec sw tc qdisc add dev port0 root netem delay 10ms");
    BOOST_TEST(carrier_of(4096, 1) == "verbs");
    exposed_matrix m{{1, length, 0}, access_mode::read, 2};
    auto expected = pattern(length, 2);
    auto done = start_read(m, length);
    BOOST_TEST_REQUIRE(eventually([&] { return memory->data()[0] == expected[0]; }));
    breaks();
    BOOST_TEST(carrier_of(done, length, 2) == "tcp");
    BOOST_TEST(carrier_of(4096, 3) == "tcp");
    mends();
    run("ip netns exec sw tc qdisc del dev port0 root");
    BOOST_TEST(eventually([&] { return carrier_of(4096, 4) == "verbs"; }), rail("last_error"));
  }
};

/// Without the right to lock more memory than the limit says, until it goes; for threads made
/// meanwhile, too.
class little_locked_memory {
public:
  explicit little_locked_memory(rlim_t bytes) {
    BOOST_REQUIRE(syscall(SYS_capget, &header_, before_.data()) == 0);
    BOOST_REQUIRE(getrlimit(RLIMIT_MEMLOCK, &limit_) == 0);
    auto less = before_;
    less[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
    rlimit low{bytes, limit_.rlim_max};
    BOOST_REQUIRE(setrlimit(RLIMIT_MEMLOCK, &low) == 0);
    BOOST_REQUIRE(syscall(SYS_capset, &header_, less.data()) == 0);
  }
  ~little_locked_memory() {
    syscall(SYS_capset, &header_, before_.data());
    setrlimit(RLIMIT_MEMLOCK, &limit_);
  }

private:
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> before_{};
  rlimit limit_{};
};

} // namespace

BOOST_AUTO_TEST_SUITE(verbs_fallback)

BOOST_AUTO_TEST_CASE(a_link_that_goes_down_under_way) {
  two_fabrics f;
  f.outlive([] { link_down(1); }, [] { link_up(1); });
}

BOOST_AUTO_TEST_CASE(a_network_that_falls_silent_under_way) {
  two_fabrics f;
  f.outlive(
    [] { run("ip netns exec sw tc qdisc change dev port0 root netem loss 100%"); },
    [] { run("ip netns exec sw tc qdisc change dev port0 root netem delay 1ms"); });
}

BOOST_AUTO_TEST_CASE(memory_that_may_not_be_locked) {
  kept_log lines;
  {
    little_locked_memory less{1u << 20};
    two_fabrics f;
    for (std::uint64_t i = 0; i < 4; ++i)
      BOOST_TEST(f.carrier_of(2 << 20, i) == "tcp");
  }
  // The driver that cannot register says it once, and the fabric that chooses another path once.
  BOOST_TEST(lines.count("staging memory not registered") == 1u, lines.text());
  BOOST_TEST(lines.count("path changed") == 1u, lines.text());
}

BOOST_AUTO_TEST_SUITE_END()
