// Opens and closes channels with their streams. Nothing is left behind.
#include "tcp_support.hpp"

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;
using namespace millrace::transport;
using namespace millrace::transport::testing;

namespace {

constexpr int cycles = 1000;

tcp_options encrypted() {
  auto o = small_options();
  o.listen.clear();
  o.encrypt = true;
  return o;
}

/// Counts what the process holds while no channel is open.
struct counted : pair_of_fabrics {
  template <class... As>
  explicit counted(const As&... as) : pair_of_fabrics(as...) {
    // Once, for what is made at the first time and stays.
    read_and_check(4096);
    settle();
    descriptors = open_descriptors();
    regions = exposed_regions();
  }

  void nothing_is_left() {
    settle();
    BOOST_TEST(eventually([&] { return open_descriptors() <= descriptors; }));
    BOOST_TEST(exposed_regions() == regions);
  }
  void read_and_check(std::size_t length) {
    exposed_matrix memory{{1, length, 0}, access_mode::read, 3};
    std::vector<std::byte> room(length);
    auto moved = move(*there, direction::read, memory.handle(), room.data(), length);
    BOOST_TEST_REQUIRE(moved.has_value(), millrace::testing::why(moved));
    BOOST_TEST((room == pattern(length, 3)));
  }
  void come_and_go() {
    for (int i = 0; i < cycles; ++i) {
      connect();
      read_and_check(4096);
      link->close({});
    }
    nothing_is_left();
  }

  std::size_t descriptors = 0;
  std::size_t regions = 0;
};

/// As if the hosts at both ends had lost them: without a word of the channel's or of TLS, every
/// other time with resets.
void break_all(bool reset) {
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  for (auto fd : tcp_sockets()) {
    if (reset)
      static_cast<void>(::connect(fd, &none, sizeof(none)));
    else
      ::shutdown(fd, SHUT_RDWR);
  }
}

/// Transfers in both directions at the time at which the connections break.
int ended_by_death(counted& p, int cycle) {
  constexpr std::size_t length = 1u << 20;
  exposed_matrix source{{1, length, 0}, access_mode::read, 5};
  exposed_matrix target{{1, length, 0}, access_mode::write, 5};
  std::vector<std::byte> room(length), sent = pattern(length, 6);
  held_completion<transfer_report> read, write;
  p.there->submit(
    {.dir = direction::read,
     .remote = source.handle(),
     .ops = {{.local = room.data(), .length = length}}},
    read.callback());
  p.there->submit(
    {.dir = direction::write,
     .remote = target.handle(),
     .ops = {{.local = sent.data(), .length = length}}},
    write.callback());
  std::this_thread::sleep_for(std::chrono::microseconds{100 * (cycle % 20)});
  break_all(cycle % 2 == 1);
  int died = 0;
  for (auto* moved : {&read, &write}) {
    auto outcome = moved->take();
    died += !outcome.has_value();
    if (!outcome)
      BOOST_TEST((outcome.error().code() == errc::peer_lost), outcome.error().to_string());
  }
  return died;
}

} // namespace

BOOST_AUTO_TEST_SUITE(tcp_leaks)

BOOST_AUTO_TEST_CASE(a_thousand_channels_leave_nothing_behind) {
  counted p;
  p.come_and_go();
}

BOOST_AUTO_TEST_CASE(a_thousand_channels_with_encrypted_streams_through_one_port_leave_nothing) {
  counted p{encrypted(), pair_of_fabrics::on_network{}};
  p.come_and_go();
}

BOOST_AUTO_TEST_CASE(a_thousand_peers_that_die_within_transfers_leave_nothing_behind) {
  counted p{encrypted(), pair_of_fabrics::on_network{}};
  int died = 0;
  for (int i = 0; i < cycles; ++i) {
    p.connect();
    died += ended_by_death(p, i);
  }
  BOOST_TEST(died > cycles / 2);
  p.connect();
  p.read_and_check(100'000);
  p.nothing_is_left();
}

BOOST_AUTO_TEST_SUITE_END()
