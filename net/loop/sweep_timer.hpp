// Calls a member function of its owner on the loop after a delay. A member of the owner.
#pragma once

#include <millrace/net/loop/io_loop.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace millrace::net {

/// Threads: any.
class sweep_timer {
public:
  sweep_timer(std::shared_ptr<io_loop> loop, std::uint32_t interval_ms)
    : loop_(std::move(loop)), interval_ms_(interval_ms) {}

  /// Calls `sweep` of the owner once, on the loop, if the owner still exists then. Further calls
  /// before that have no effect. To repeat, `sweep` arms the timer again.
  template <class Owner>
  void arm(std::weak_ptr<Owner> owner, void (Owner::*sweep)()) {
    if (armed_.exchange(true))
      return;
    loop_->run_after(interval_ms_, [this, owner = std::move(owner), sweep] {
      // This is a part of the owner.
      if (auto alive = owner.lock()) {
        armed_ = false;
        ((*alive).*sweep)();
      }
    });
  }

private:
  const std::shared_ptr<io_loop> loop_;
  const std::uint32_t interval_ms_;
  std::atomic<bool> armed_ = false;
};

} // namespace millrace::net
