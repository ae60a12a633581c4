// The tcp driver keeps the contract in each of its settings, with the memory of a child.
#include "process_rig.hpp"

using namespace millrace;
using namespace millrace::testing;

namespace {

using words = std::vector<std::string>;

// Nobody maps anything here: the contract asks for the owner's mappings by its process.
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
