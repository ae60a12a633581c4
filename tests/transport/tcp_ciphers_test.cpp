// Tests encrypted byte streams between two ends of one socket, with either cipher and every border
// between records.
#include <millrace/core/ids.hpp>
#include <millrace/tests/support/kernel_tls.hpp>
#include <millrace/tests/support/pattern.hpp>
#include <millrace/transport/tcp/encrypted_socket.hpp>

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <optional>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::transport;
using namespace millrace::transport::tcp;

namespace {

struct ends {
  std::unique_ptr<bulk_socket> connects;
  std::unique_ptr<bulk_socket> accepts;
};

channel_key key_of(std::uint8_t seed) {
  channel_key k;
  k.fill(std::byte{seed});
  return k;
}

// Returns TCP sockets, which the kernel can encrypt.
std::pair<unique_fd, unique_fd> connected_sockets() {
  unique_fd listening{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  unique_fd one{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* name = reinterpret_cast<sockaddr*>(&at);
  socklen_t size = sizeof(at);
  BOOST_TEST_REQUIRE(::bind(listening.get(), name, size) == 0);
  BOOST_TEST_REQUIRE(::listen(listening.get(), 1) == 0);
  BOOST_TEST_REQUIRE(::getsockname(listening.get(), name, &size) == 0);
  BOOST_TEST_REQUIRE(::connect(one.get(), name, size) == 0);
  unique_fd two{::accept4(listening.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
  BOOST_TEST_REQUIRE(::fcntl(one.get(), F_SETFL, O_NONBLOCK) == 0);
  return {std::move(one), std::move(two)};
}

ends make_ends(
  bulk_cipher connects, bulk_cipher accepts, const channel_key& key = key_of(1),
  const channel_key& other = key_of(1)) {
  auto [one, two] = connected_sockets();
  return {
    make_encrypted_socket(std::move(one), key, true, connects).value(),
    make_encrypted_socket(std::move(two), other, false, accepts).value()};
}

// Sends all of `parts` one way and gives what came out, read in pieces of so many bytes; or the
// error.
struct outcome {
  std::vector<std::byte> bytes;
  int error_number = 0;
};

outcome carry(bulk_socket& from, bulk_socket& to, std::vector<iovec> parts, std::size_t piece) {
  outcome out;
  std::size_t left = 0;
  for (auto& p : parts)
    left += p.iov_len;
  auto total = left;
  while (out.bytes.size() < total) {
    if (left > 0) {
      auto sent = from.send(parts, false);
      if (sent.error_number != 0 && sent.error_number != EAGAIN)
        return {{}, sent.error_number};
      left -= sent.size_bytes;
      for (auto n = sent.size_bytes; n > 0;) {
        auto of_first = std::min(n, parts.front().iov_len);
        parts.front() = {
          static_cast<std::byte*>(parts.front().iov_base) + of_first,
          parts.front().iov_len - of_first};
        n -= of_first;
        if (parts.front().iov_len == 0)
          parts.erase(parts.begin());
      }
    }
    from.flush();
    std::vector<std::byte> room(piece);
    iovec where{room.data(), room.size()};
    auto got = to.receive({&where, 1});
    if (got.error_number != 0 && got.error_number != EAGAIN)
      return {{}, got.error_number};
    out.bytes.insert(out.bytes.end(), room.begin(), room.begin() + got.size_bytes);
  }
  return out;
}

} // namespace

BOOST_AUTO_TEST_SUITE(tcp_ciphers)

BOOST_AUTO_TEST_CASE(whatever_either_side_prefers_bytes_arrive_both_ways) {
  for (auto connects : {bulk_cipher::aes, bulk_cipher::chacha})
    for (auto accepts : {bulk_cipher::aes, bulk_cipher::chacha}) {
      auto e = make_ends(connects, accepts);
      auto bytes = testing::pattern(1'000'003, 5);
      // Short parts share a record, and long ones are cut.
      std::vector<iovec> parts{
        {bytes.data(), 1},
        {bytes.data() + 1, 72},
        {bytes.data() + 73, 0},
        {bytes.data() + 73, 16'384},
        {bytes.data() + 16'457, bytes.size() - 16'457}};
      for (std::size_t piece : {100'000u, 1'000u}) {
        BOOST_TEST((carry(*e.connects, *e.accepts, parts, piece).bytes == bytes));
        BOOST_TEST((carry(*e.accepts, *e.connects, parts, piece).bytes == bytes));
      }
    }
}

BOOST_AUTO_TEST_CASE(the_kernel_encrypts_where_it_can) {
  if (!testing::kernel_has_tls())
    return;
  for (auto cipher : {bulk_cipher::aes, bulk_cipher::chacha}) {
    auto e = make_ends(cipher, cipher);
    auto bytes = testing::pattern(100, 5);
    BOOST_TEST((carry(*e.connects, *e.accepts, {{bytes.data(), 100}}, 100).bytes == bytes));
    BOOST_TEST((carry(*e.accepts, *e.connects, {{bytes.data(), 100}}, 100).bytes == bytes));
    BOOST_TEST(testing::kernel_encrypts(e.connects->fd()));
    BOOST_TEST(testing::kernel_encrypts(e.accepts->fd()));
  }
}

BOOST_AUTO_TEST_CASE(another_key_is_refused) {
  auto e = make_ends(bulk_cipher::aes, bulk_cipher::aes, key_of(1), key_of(2));
  auto bytes = testing::pattern(100, 5);
  BOOST_TEST(carry(*e.connects, *e.accepts, {{bytes.data(), bytes.size()}}, 100).error_number != 0);
}

BOOST_AUTO_TEST_CASE(the_end_comes_after_the_last_bytes_and_is_no_error) {
  auto e = make_ends(bulk_cipher::aes, bulk_cipher::aes);
  auto bytes = testing::pattern(5'000, 5);
  BOOST_TEST((carry(*e.connects, *e.accepts, {{bytes.data(), 5'000}}, 5'000).bytes == bytes));
  iovec last{bytes.data(), 5'000};
  BOOST_TEST(e.connects->send({&last, 1}, false).size_bytes == 5'000u);
  e.connects->shut();
  std::vector<std::byte> room(10'000);
  iovec where{room.data(), room.size()};
  auto got = e.accepts->receive({&where, 1});
  BOOST_TEST(got.size_bytes == 5'000u);
  got = e.accepts->receive({&where, 1});
  BOOST_TEST(got.size_bytes == 0u);
  BOOST_TEST(got.error_number == 0);
}

BOOST_AUTO_TEST_SUITE_END()
