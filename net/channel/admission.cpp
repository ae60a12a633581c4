// What all listeners share: accepting until stopped, and asking the service for a handler.
#include <millrace/net/channel/admission.hpp>

#include <utility>

namespace millrace::net {

namespace {

class admitting_listener final : public listener {
public:
  explicit admitting_listener(std::shared_ptr<admission> a)
    : loop_(a->loop), address_(a->where.address), admission_(std::move(a)) {
    loop_->post([a = admission_] { a->open(); });
  }
  ~admitting_listener() override { stop(); }

  const std::string& address() const noexcept override { return address_; }

  void stop() override {
    std::lock_guard guard{mutex_};
    auto a = std::exchange(admission_, nullptr);
    if (!a)
      return;
    a->shut();
    loop_->post([a = std::move(a)] { a->close(); });
  }

private:
  const std::shared_ptr<io_loop> loop_;
  const std::string address_;
  std::mutex mutex_;
  std::shared_ptr<admission> admission_; // null once stopped
};

} // namespace

void admission::open() {
  acceptor_ = std::make_shared<acceptor>(
    loop, where.address, std::move(sockets_),
    [weak = weak_from_this()](unique_fd fd, const socket_address& from) {
      if (auto a = weak.lock())
        a->receive(std::move(fd), from);
    });
  acceptor_->open();
}

void admission::shut() {
  std::lock_guard guard{accept_mutex_};
  accept_ = nullptr;
}

void admission::close() { acceptor_->close(); }

status admission::has_all_connections() const {
  return {errc::busy, "the service has all of its {} connections", where.connections_max};
}

result<std::shared_ptr<channel_handler>> admission::handler_for(const peer_info& peer) {
  std::lock_guard guard{accept_mutex_};
  auto handler = accept_ ? accept_(peer) : nullptr;
  if (!handler)
    return fail(errc::unavailable, "the service accepts no connections now");
  return handler;
}

std::shared_ptr<listener> listener_of(std::shared_ptr<admission> a) {
  return std::make_shared<admitting_listener>(std::move(a));
}

} // namespace millrace::net
