// Finds out whether this kernel can encrypt TCP connections, and whether it does.
// Used by tests of encrypted streams.
#pragma once

#include <millrace/tests/support/skipped.hpp>

#include <boost/test/unit_test.hpp>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace millrace::testing {

/// Returns whether the module is loaded, and prints that the test is skipped if it is not. With
/// MILLRACE_TEST_KTLS a missing module fails the test.
inline bool kernel_has_tls() {
  std::ifstream in{"/proc/sys/net/ipv4/tcp_available_ulp"};
  std::vector<std::string> layers{std::istream_iterator<std::string>{in}, {}};
  auto has = std::find(layers.begin(), layers.end(), "tls") != layers.end();
  BOOST_TEST_REQUIRE((has || !std::getenv("MILLRACE_TEST_KTLS")), "the kernel has no module tls");
  if (!has)
    millrace::testing::skipped("encryption by the kernel: its module tls is not loaded");
  return has;
}

/// Returns true if the kernel encrypts at least what this socket sends.
inline bool kernel_encrypts(int fd) {
  std::array<char, 16> layer{};
  socklen_t size = layer.size();
  return ::getsockopt(fd, IPPROTO_TCP, TCP_ULP, layer.data(), &size) == 0 &&
    std::string{layer.data()} == "tls";
}

/// Returns the connected TCP sockets of this process.
inline std::vector<int> tcp_sockets() {
  std::vector<int> out;
  for (auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    auto fd = std::stoi(entry.path().filename().string());
    sockaddr_storage a{};
    socklen_t size = sizeof(a);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&a), &size) == 0 && a.ss_family == AF_INET)
      out.push_back(fd);
  }
  return out;
}

} // namespace millrace::testing
