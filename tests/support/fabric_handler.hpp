// Feeds a channel's events to a fabric, as sessions and proxies do.
// Used by transport tests.
#pragma once

#include <millrace/transport/fabric.hpp>

#include <condition_variable>
#include <mutex>

namespace millrace::testing {

class fabric_handler : public net::channel_handler {
public:
  explicit fabric_handler(std::shared_ptr<transport::fabric> f) : fabric_(std::move(f)) {}

  void on_open(const std::shared_ptr<net::channel>& c) override {
    fabric_->peer_opened(c);
    std::lock_guard guard{mutex_};
    opened_ = true;
    changed_.notify_all();
  }
  void on_frame(net::channel& c, net::frame f) override { fabric_->on_frame(c, std::move(f)); }
  void on_close(net::channel& c, const status& why) override {
    fabric_->peer_closed(c, why);
    std::lock_guard guard{mutex_};
    closed_ = true;
    changed_.notify_all();
  }

  bool wait_open() { return wait_for(opened_); }
  bool wait_closed() { return wait_for(closed_); }

private:
  bool wait_for(const bool& what) {
    std::unique_lock guard{mutex_};
    return changed_.wait_for(guard, std::chrono::seconds{30}, [&] { return what; });
  }

  std::shared_ptr<transport::fabric> fabric_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool opened_ = false;
  bool closed_ = false;
};

} // namespace millrace::testing
