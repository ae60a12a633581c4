// The operating system's network. Used by every link and node outside simulations.
#include <millrace/core/never_destroyed.hpp>
#include <millrace/net/channel/network.hpp>

namespace millrace::net {

namespace {

class system_network final : public network {
public:
  void connect(
    const std::shared_ptr<io_loop>& loop, const std::string& address,
    const channel_options& options, std::shared_ptr<channel_handler> handler,
    completion<std::shared_ptr<channel>> done) override {
    net::connect(loop, address, options, std::move(handler), std::move(done));
  }

  result<std::shared_ptr<listener>> listen(
    const std::shared_ptr<io_loop>& loop, const listener_options& where,
    const channel_options& options, accept_function accept) override {
    return listener::open(loop, where, options, std::move(accept));
  }
};

} // namespace

const std::shared_ptr<network>& network::of_system() {
  return never_destroyed(
    []() -> const std::shared_ptr<network> { return std::make_shared<system_network>(); });
}

} // namespace millrace::net
