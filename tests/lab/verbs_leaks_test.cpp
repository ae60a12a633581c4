// Does everything a thousand times, and counts before and after: what devices hold, windows,
// descriptors, threads. MILLRACE_TEST_VERBS=OURS/THEIRS names the devices of two drivers in this
// process. Run in the lab guest.
#include "two_drivers.hpp"

#include <millrace/tests/support/descriptors.hpp>

#include <sys/socket.h>

#include <filesystem>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::net;
using namespace millrace::transport;

namespace {

constexpr std::uint64_t cycles = 1000;

struct census {
  // Protection domains, completion queues, queue pairs, registrations of each device.
  std::string resources = run("rdma resource show");
  std::size_t descriptors = open_descriptors();
  // Those that set up queue pairs come when there is something to do, up to a bound, and stay.
  std::size_t threads = entries_of("/proc/self/task") - states_of_threads("mr.verbs.setup").size();

  friend bool operator==(const census&, const census&) = default;
};

std::ostream& operator<<(std::ostream& out, const census& c) {
  return out << c.descriptors << " descriptors, " << c.threads << " threads, " << c.resources;
}

struct counted : two_drivers {
  // `windows_checked`: true makes the owner keep registrations as with other devices.
  explicit counted(std::optional<bool> windows_checked)
    : two_drivers(
        [&](verbs_options&, verbs_options& theirs) { theirs.windows_checked = windows_checked; }) {
    // Once, for what is made at the first time and stays.
    read_and_check(4096, 1);
    disconnect();
    connect();
    let_go();
    before = census{};
  }
  // Drops what the driver keeps for later transfers.
  void let_go() { theirs->invalidate(nullptr, ~0ull >> 1); }
  void nothing_is_left() {
    BOOST_TEST(eventually([&] { return theirs->stats().windows == 0; }));
    BOOST_TEST(theirs->stats().grants == 0u);
    let_go();
    BOOST_TEST(theirs->stats().registrations == 0u);
    BOOST_TEST(eventually([&] { return census{} == before; }, 10));
    BOOST_TEST(census{} == before);
    BOOST_TEST(states_of_threads("mr.verbs.setup").size() <= 2 * verbs_options{}.setup_threads);
  }

  census before;
};

void regions_come_and_go(std::optional<bool> windows_checked) {
  counted d{windows_checked};
  for (std::uint64_t i = 0; i < cycles; ++i) {
    exposed_matrix m{{1, 8192, 0}, access_mode::read, i};
    auto moved = d.start_read(m.handle(), 8192).take();
    BOOST_TEST_REQUIRE(moved.has_value(), why(moved));
  }
  d.nothing_is_left();
}

void peers_come_and_go(std::optional<bool> windows_checked) {
  counted d{windows_checked};
  for (std::uint64_t i = 0; i < cycles; ++i) {
    d.disconnect();
    d.connect();
    d.read_and_check(4096, i);
  }
  d.nothing_is_left();
}

// The channel is how a peer's death is noticed: its sockets end without a word.
void break_channels() {
  for (auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    auto fd = std::stoi(entry.path().filename().string());
    sockaddr_storage a{};
    socklen_t size = sizeof(a);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&a), &size) == 0 && a.ss_family == AF_UNIX)
      ::shutdown(fd, SHUT_RDWR);
  }
}

void peers_die_within_transfers() {
  constexpr std::uint64_t length = 128u << 10;
  counted d{std::nullopt};
  std::uint64_t died = 0;
  for (std::uint64_t i = 0; i < cycles; ++i) {
    d.disconnect();
    d.connect();
    exposed_matrix m{{1, length, 0}, access_mode::read, i};
    auto done = d.start_read(m.handle(), length);
    usleep(static_cast<useconds_t>(100 * (i % 20)));
    break_channels();
    died += !done.take().has_value();
  }
  BOOST_TEST(died > cycles / 4);
  d.disconnect();
  d.connect();
  d.read_and_check(length, 1);
  d.nothing_is_left();
}

} // namespace

BOOST_AUTO_TEST_SUITE(verbs_leaks)

BOOST_AUTO_TEST_CASE(regions_leave_nothing) { regions_come_and_go(std::nullopt); }

BOOST_AUTO_TEST_CASE(regions_leave_nothing_where_registrations_are_kept) {
  regions_come_and_go(true);
}

BOOST_AUTO_TEST_CASE(peers_leave_nothing) { peers_come_and_go(std::nullopt); }

BOOST_AUTO_TEST_CASE(peers_leave_nothing_where_registrations_are_kept) { peers_come_and_go(true); }

BOOST_AUTO_TEST_CASE(deaths_within_transfers_leave_nothing) { peers_die_within_transfers(); }

BOOST_AUTO_TEST_SUITE_END()
