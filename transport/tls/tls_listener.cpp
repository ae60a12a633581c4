// The listener of a network as its owner holds it.
// Opened by `listener::open`.
#include <millrace/transport/tls/listening_sockets.hpp>
#include <millrace/transport/tls/tls_address.hpp>
#include <millrace/transport/tls/tls_channel.hpp>
#include <millrace/transport/tls/tls_door.hpp>

namespace millrace::transport {

namespace {

class tls_listener final : public listener {
public:
  tls_listener(std::shared_ptr<io_loop> loop, std::string address, std::shared_ptr<tls_door> d)
    : loop_(std::move(loop)), address_(std::move(address)), door_(std::move(d)) {
    loop_->post([d = door_] { d->open(); });
  }
  ~tls_listener() override { stop(); }

  const std::string& address() const noexcept override { return address_; }

  void stop() override {
    std::lock_guard guard{mutex_};
    auto d = std::exchange(door_, nullptr);
    if (!d)
      return;
    d->shut();
    loop_->post([d = std::move(d)] { d->close(); });
  }

private:
  const std::shared_ptr<io_loop> loop_;
  const std::string address_;
  std::mutex mutex_;
  std::shared_ptr<tls_door> door_;
};

} // namespace

result<std::shared_ptr<listener>> listen_tls(
  const std::shared_ptr<io_loop>& loop, const listener_options& where,
  const channel_options& options,
  std::function<std::shared_ptr<channel_handler>(const peer_info&)> accept) {
  if (!options.tls)
    return fail(tls_is_not_configured(where.address));
  auto sockets = open_listening_sockets(where.address);
  if (!sockets)
    return fail(sockets.error());
  auto exact = where;
  exact.address = sockets->address;
  auto d = std::make_shared<tls_door>(
    loop, std::move(exact), options, std::move(accept), std::move(sockets->fds));
  return std::make_shared<tls_listener>(loop, sockets->address, std::move(d));
}

} // namespace millrace::transport
