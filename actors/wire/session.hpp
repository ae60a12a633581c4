// The server's end of one connection: requests of a peer become messages to the node's actors.
#pragma once

#include <millrace/actors/wire/service_table.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/fabric.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace millrace::actors {

/// The connections of a node: counted for `status`, closed together when it stops. Threads: any.
class connection_table {
public:
  void add(const std::shared_ptr<net::channel>& c);
  void remove(const net::channel& c);
  std::size_t size() const;

  /// From now on requests are refused with `unavailable`.
  void refuse() noexcept { refusing_ = true; }
  bool refusing() const noexcept { return refusing_; }

  /// Closes every connection once what it still has to say is written, or after `drain_ms`.
  void close_all(const status& why, std::uint32_t drain_ms);

private:
  std::atomic<bool> refusing_ = false;
  mutable std::mutex mutex_;
  std::map<const net::channel*, std::weak_ptr<net::channel>> open_;
};

/// Makes the handler for one accepted connection. It lives as long as the channel.
std::shared_ptr<net::channel_handler> make_session(
  caf::actor_system& system, std::shared_ptr<transport::fabric> fabric,
  std::shared_ptr<const service_table> services, std::shared_ptr<connection_table> connections);

} // namespace millrace::actors
