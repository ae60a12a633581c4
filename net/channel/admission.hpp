// The side of a listener that lives on the loop: it decides whom to admit, and counts the
// connections. Base class of admission at Unix sockets (listener.cpp) and on networks
// (tls/network_admission).
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/net/socket/acceptor.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace millrace::net {

/// Threads: the loop, but for `shut`. Made by `make_shared` only.
class admission : public std::enable_shared_from_this<admission> {
public:
  using accept_function = std::function<std::shared_ptr<channel_handler>(const peer_info&)>;

  admission(
    std::shared_ptr<io_loop> loop, listener_options where, const channel_options& options,
    accept_function accept, std::vector<unique_fd> sockets)
    : loop(std::move(loop)), where(std::move(where)), options(options),
      connections_(counter_of(this->where)), accept_(std::move(accept)),
      sockets_(std::move(sockets)) {}
  virtual ~admission() = default;

  void open();
  /// Any thread: once it returns, no connection is admitted any more.
  virtual void shut();
  /// After `shut`.
  virtual void close();

  const std::shared_ptr<io_loop> loop;
  const listener_options where;
  const channel_options options;

protected:
  virtual void receive(unique_fd fd, const socket_address& from) = 0;
  bool is_full() const noexcept { return *connections_ >= where.connections_max; }
  status has_all_connections() const;
  /// Asks the service. Errors: `unavailable` when it refuses, or after `shut`.
  result<std::shared_ptr<channel_handler>> handler_for(const peer_info& peer);

  const std::shared_ptr<std::uint32_t> connections_;

private:
  std::mutex accept_mutex_;
  accept_function accept_;         // null once shut
  std::vector<unique_fd> sockets_; // until `open`
  std::shared_ptr<acceptor> acceptor_;
};

/// Opens it; the listener shuts and closes it when stopped.
std::shared_ptr<listener> listener_of(std::shared_ptr<admission> a);

} // namespace millrace::net
