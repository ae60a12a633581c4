// Runs the contract with the tcp driver in each of its settings, with the memory of a child.
#include "process_rig.hpp"

#include <millrace/tests/support/kernel_tls.hpp>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::testing;
using namespace millrace::transport;

namespace {

using words = std::vector<std::string>;

// This driver maps nothing. The contract would ask for the owner's mappings by its process.
class tcp_rig : public process_rig {
public:
  tcp_rig(const words& here, const words& there) : process_rig(here, there) {
    if (std::count(here.begin(), here.end(), "staged") > 0)
      wait_until_reached();
  }
  pid_t owner_pid() const override { return 0; }
};

bool add_tcp(const std::string& name, const words& here, const words& there) {
  return add_driver_contract(
    name, [here, there] { return std::make_unique<tcp_rig>(here, there); });
}

const bool registered[] = {
  add_tcp("tcp", {"tcp", "listen"}, {"tcp"}),
  add_tcp("tcp_towards_the_owner", {"tcp"}, {"tcp", "listen"}),
  add_tcp("tcp_checksum", {"tcp", "listen"}, {"tcp", "checksum"}),
  add_tcp("tcp_encrypted", {"tcp", "listen", "encrypt"}, {"tcp"}),
  add_tcp("tcp_encrypted_by_the_owner", {"tcp"}, {"tcp", "listen", "encrypt", "checksum"}),
  add_tcp("tcp_staged", {"tcp", "listen", "staged"}, {"tcp", "staged", "device"}),
  add_tcp("tcp_single_stream", {"tcp", "listen", "single"}, {"tcp"}),
};

} // namespace

BOOST_AUTO_TEST_SUITE(tcp_kernel)

BOOST_AUTO_TEST_CASE(every_stream_of_the_contract_is_encrypted_by_the_kernel_where_it_can) {
  if (!kernel_has_tls())
    return;
  const words here{"tcp", "listen", "encrypt"};
  tcp_rig rig{here, {"tcp"}};
  auto handle = rig.expose({1, 64u << 20, 0}, access_mode::read, 5);
  std::vector<std::byte> room(64u << 20);
  held_completion<transfer_report> done;
  rig.fabric().submit(
    {.dir = direction::read,
     .remote = handle,
     .ops = {{.local = room.data(), .length = room.size()}}},
    done.callback());
  BOOST_TEST_REQUIRE(done.take().has_value());
  BOOST_TEST((room == pattern(room.size(), 5)));
  // The last stream may still be in its handshake.
  auto encrypted = [count = rig_options(here).drivers.of<transport::tcp_options>().streams] {
    auto streams = tcp_sockets();
    return streams.size() == count && std::all_of(streams.begin(), streams.end(), kernel_encrypts);
  };
  for (int i = 0; i < 6000 && !encrypted(); ++i)
    usleep(10'000);
  BOOST_TEST(encrypted());
}

BOOST_AUTO_TEST_SUITE_END()
