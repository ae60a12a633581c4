// Tells the manager that started this process, such as systemd, how it stands.
// Used by `serve`.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>

namespace millrace::tools {

/// Sends the datagrams of sd_notify(3). Without a manager it sends nothing.
/// Threads: any.
class service_manager {
public:
  /// Finds the manager by NOTIFY_SOCKET, and how often it wants to hear of this process by
  /// WATCHDOG_USEC and WATCHDOG_PID.
  /// Errors:  `invalid_argument` for a socket or a time that makes no sense; `io_error` without a
  ///          descriptor. What cannot be sent later is logged.
  static result<service_manager> of_this_process();

  /// Returns half the time after which the manager takes a silent process for dead; 0: it does not
  /// watch. At least 1.
  std::uint32_t watchdog_interval_ms() const noexcept { return watchdog_interval_ms_; }

  void starting(const std::string& what) const;
  void ready(const std::string& what) const;
  void stopping(const std::string& why) const;
  /// Says that the process is alive. Never blocks: if the manager's queue is full it sends nothing.
  void alive() const;

private:
  void tell(const std::string& state, const std::string& what) const;
  bool send(const std::string& text, int flags) const;

  net::unique_fd socket_; // not open: no manager
  sockaddr_un manager_{};
  socklen_t manager_bytes_ = 0;
  std::uint32_t watchdog_interval_ms_ = 0;
};

} // namespace millrace::tools
