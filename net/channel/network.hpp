// The network: that of the operating system, or one that a test simulates. Used by links and
// nodes.
#pragma once

#include <millrace/net/channel/channel.hpp>

#include <memory>
#include <string>

namespace millrace::net {

/// Makes channels. Threads: any.
class network {
public:
  virtual ~network() = default;

  /// See `net::connect`.
  virtual void connect(
    const std::shared_ptr<io_loop>& loop, const std::string& address,
    const channel_options& options, std::shared_ptr<channel_handler> handler,
    completion<std::shared_ptr<channel>> done) = 0;

  /// See `listener::open`.
  virtual result<std::shared_ptr<listener>> listen(
    const std::shared_ptr<io_loop>& loop, const listener_options& where,
    const channel_options& options, accept_function accept) = 0;

  static const std::shared_ptr<network>& of_system();
};

} // namespace millrace::net
