// Channels come and go with their streams, and nothing is left behind.
#include "tcp_support.hpp"

using namespace millrace;
using namespace millrace::transport;
using namespace millrace::transport::testing;

BOOST_AUTO_TEST_CASE(a_thousand_channels_leave_nothing_behind) {
  pair_of_fabrics p;
  exposed_matrix memory{{1, 4096, 0}, access_mode::read, 3};
  std::vector<std::byte> room(4096);
  auto expected = pattern(4096, 3);
  auto settled = [&] {
    p.link->close({});
    BOOST_TEST_REQUIRE(eventually([&] { return tcp_sockets().empty(); }));
  };
  settled();
  auto descriptors = open_descriptors();
  auto regions = exposed_regions();
  for (int i = 0; i < 1000; ++i) {
    p.connect();
    auto moved = move(*p.there, direction::read, memory.handle(), room.data(), room.size());
    BOOST_TEST_REQUIRE(moved.has_value(), millrace::testing::why(moved));
    p.link->close({});
  }
  BOOST_TEST((room == expected));
  settled();
  BOOST_TEST(eventually([&] { return open_descriptors() <= descriptors; }));
  BOOST_TEST(exposed_regions() == regions);
}
