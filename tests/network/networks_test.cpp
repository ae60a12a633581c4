// Tests the small network itself: what it is told happens to the packets. Otherwise tests on it
// would prove nothing.
#include "networks.hpp"

#include <millrace/tests/support/skipped.hpp>

#include <boost/test/unit_test.hpp>

#include <iostream>

using namespace millrace::testing;

namespace {

// Says how many of `count` datagrams, sent one after the other, come back from the other host.
constexpr auto echo = R"(
import socket, sys, threading
family = socket.AF_INET6 if ':' in sys.argv[2] else socket.AF_INET
s = socket.socket(family, socket.SOCK_DGRAM)
if sys.argv[1] == 'serve':
  s.bind((sys.argv[2], 9))
  print('ready', flush=True)
  while True:
    data, source = s.recvfrom(2048)
    s.sendto(data, source)
s.settimeout(float(sys.argv[4]))
back = 0
for i in range(int(sys.argv[3])):
  s.sendto(b'x' * 1000, (sys.argv[2], 9))
  try:
    s.recvfrom(2048)
    back += 1
  except socket.timeout:
    pass
print(back)
)";

std::string python() { return "/usr/bin/python3"; }

} // namespace

BOOST_AUTO_TEST_CASE(a_network_delivers_loses_cuts_and_heals) {
  auto why_not = std::filesystem::exists(python()) ? why_no_networks() : "no " + python();
  if (!why_not.empty()) {
    millrace::testing::skipped("networks: " + why_not);
    return;
  }
  scratch here;
  auto script = here.write("echo.py", echo);
  networks net{2};
  auto count_back = [&](const std::string& to, int count, const char* wait_s) {
    auto done =
      run_program(net.on(0, {python(), script, "ask", to, std::to_string(count), wait_s}));
    BOOST_TEST_REQUIRE(done.code == 0, done.err);
    return std::stoi(done.out);
  };
  for (auto& to : {net.address(1), net.address6(1)}) {
    child_process server{net.on(1, {python(), script, "serve", to})};
    BOOST_TEST_REQUIRE(server.read_line() == "ready");
    BOOST_TEST(count_back(to, 20, "20") == 20);
    net.lose(30);
    auto back = count_back(to, 50, "0.05");
    BOOST_TEST(back < 50);
    BOOST_TEST(back > 0);
    net.heal();
    net.cut(0, 1);
    BOOST_TEST(count_back(to, 3, "0.05") == 0);
    net.heal();
    BOOST_TEST(count_back(to, 20, "20") == 20);
  }
}
