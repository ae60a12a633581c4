// A listener as its owner holds it: the door that accepts lives on the loop.
// Used where listeners of Unix sockets and of networks are opened.
#pragma once

#include <millrace/net/channel/channel.hpp>

#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace millrace::net {

/// `Door` has `open` and `close` for the loop, and `shut` for any thread.
template <class Door>
class door_listener final : public listener {
public:
  door_listener(std::shared_ptr<io_loop> loop, std::string address, std::shared_ptr<Door> d)
    : loop_(std::move(loop)), address_(std::move(address)), door_(std::move(d)) {
    loop_->post([d = door_] { d->open(); });
  }
  ~door_listener() override { stop(); }

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
  std::shared_ptr<Door> door_;
};

} // namespace millrace::net
