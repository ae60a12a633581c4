// The epoll set of an I/O loop: descriptors, their callbacks, and the event that interrupts a wait.
// Used by `io_loop`; the thread with the loop's role calls all functions but `interrupt`.
#pragma once

#include <millrace/core/activity.hpp>
#include <millrace/core/status.hpp>
#include <millrace/net/loop/shared_signal.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace millrace::net {

class poller {
public:
  using callback = std::function<void(std::uint32_t)>;

  static result<std::unique_ptr<poller>> open();

  status watch(int fd, std::uint32_t events, callback f);
  status rewatch(int fd, std::uint32_t events);
  void unwatch(int fd);

  /// Forgets every descriptor; destroys the callbacks without running them.
  void clear();

  /// Lets `wait` look at the signal, too, until `rest` or `unwatch`.
  void poll(int fd, shared_signal& signal);

  /// Has all signals give events of their descriptors from now on. Returns false if one is raised.
  bool rest();

  /// Returns true if a process whose signal is polled looks from the core of this thread.
  bool shares_core() noexcept;

  /// Waits for events; -1 waits for ever. Returns the number of events for `dispatch`. With 0 it
  /// leaves most looks at descriptors out while signals are polled.
  int wait(int timeout_ms);

  /// Runs the callbacks of the last `wait`. `doing` tells which.
  void dispatch(int ready, activity& doing);

  /// Ends the current or the next `wait`. Any thread.
  void interrupt() noexcept;

private:
  // A descriptor number may be reused while the batch still holds an event of the former
  // descriptor.
  struct watcher {
    std::uint32_t generation = 0;
    callback f;
  };

  struct polled_signal {
    std::uint64_t token;
    shared_signal* signal;
  };

  int raised();

  unique_fd epoll_;
  unique_fd event_;
  std::uint32_t generations_ = 0;
  std::unordered_map<int, std::shared_ptr<watcher>> watchers_;
  std::vector<polled_signal> signals_;
  std::uint32_t waits_without_epoll_ = 0;
  std::array<epoll_event, 64> ready_{};
};

} // namespace millrace::net
