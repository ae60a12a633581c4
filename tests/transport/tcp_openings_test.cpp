// Tests streams that are admitted and then cannot be encrypted, because OpenSSL has no memory on
// one side of a link.
#include "tcp_support.hpp"

#include <openssl/crypto.h>

#include <future>
#include <string_view>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::transport;
using namespace millrace::transport::testing;

namespace {

thread_local bool starved = false;
std::atomic<int> refusals_of_memory = 0;

void* allocate(std::size_t size_bytes, const char* file, int) {
  // Only what makes a context of TLS: the channel's own use of OpenSSL goes on.
  if (starved && std::string_view{file}.ends_with("ssl_lib.c")) {
    ++refusals_of_memory;
    return nullptr;
  }
  return std::malloc(size_bytes);
}
void* reallocate(void* p, std::size_t size_bytes, const char*, int) {
  return std::realloc(p, size_bytes);
}
void release(void* p, const char*, int) { std::free(p); }

// Before anything else of this process uses the library.
const bool installed = CRYPTO_set_mem_functions(allocate, reallocate, release) == 1;

struct encrypted_pair : pair_of_fabrics {
  encrypted_pair() : pair_of_fabrics(encrypted()) {
    BOOST_TEST_REQUIRE(installed);
    BOOST_TEST_REQUIRE(moves(*there));
  }
  ~encrypted_pair() {
    starve(here_loop, false);
    starve(there_loop, false);
  }
  static tcp_options encrypted() {
    auto o = small_options();
    o.streams = 1;
    o.encrypt = true;
    return o;
  }
  static void starve(const std::shared_ptr<io_loop>& loop, bool how) {
    std::promise<void> done;
    loop->post([&] {
      starved = how;
      done.set_value();
    });
    done.get_future().wait();
  }
  static void break_streams() {
    for (auto fd : tcp_sockets())
      ::shutdown(fd, SHUT_RDWR);
  }
  void begin(fabric& f, held_completion<transfer_report>& done) {
    f.submit(
      {.dir = direction::read,
       .remote = memory.handle(),
       .ops = {{.local = room.data(), .length = room.size()}}},
      done.callback());
  }
  bool moves(fabric& f) {
    held_completion<transfer_report> done;
    begin(f, done);
    return done.take().has_value() && room == pattern(room.size(), 3);
  }

  exposed_matrix memory{{1, 100'000, 0}, access_mode::read, 3};
  std::vector<std::byte> room = std::vector<std::byte>(100'000);
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(tcp_openings, encrypted_pair)

BOOST_AUTO_TEST_CASE(the_side_that_accepts_keeps_its_transfers_waiting) {
  starve(here_loop, true);
  auto before = refusals_of_memory.load();
  break_streams();
  BOOST_TEST_REQUIRE(eventually([&] { return refusals_of_memory > before; }));
  held_completion<transfer_report> done;
  begin(*here, done);
  BOOST_TEST_REQUIRE(eventually([&] { return refusals_of_memory > before + 3; }));
  BOOST_TEST(!done.ready());
  starve(here_loop, false);
  auto moved = done.take();
  BOOST_TEST(moved.has_value(), millrace::testing::why(moved));
  BOOST_TEST((room == pattern(room.size(), 3)));
}

BOOST_AUTO_TEST_CASE(the_side_that_opens_gives_up_and_comes_again) {
  starve(there_loop, true);
  auto before = refusals_of_memory.load();
  break_streams();
  BOOST_TEST_REQUIRE(eventually([&] { return refusals_of_memory > before + 3; }));
  BOOST_TEST(eventually([&] { return !moves(*there); }));
  starve(there_loop, false);
  BOOST_TEST(eventually([&] { return moves(*there); }));
}

BOOST_AUTO_TEST_SUITE_END()
