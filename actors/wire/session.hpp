// The server's end of one connection. It turns a peer's requests into messages to the node's
// actors.
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

/// The connections of a node, which are counted for `status` and closed together when the node
/// stops.
/// Threads: any.
class connection_table {
public:
  void add(const std::shared_ptr<net::channel>& c);
  void remove(const net::channel& c);
  std::size_t size() const;

  /// Refuses requests with `unavailable` from now on.
  void refuse() noexcept { refusing_ = true; }
  bool refusing() const noexcept { return refusing_; }

  /// Closes every connection when its queued frames have been sent, or after `drain_ms`.
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
