// The server's end of one connection. It turns a peer's requests into messages to the node's
// actors. Made by the node.
#pragma once

#include <millrace/actors/wire/service_table.hpp>
#include <millrace/core/fair_shares.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/fabric.hpp>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>

namespace millrace::actors {

/// The requests of peers that a node has.
struct request_load {
  std::uint64_t count = 0;
  std::uint64_t size_bytes = 0;
};

/// The connections of a node, which are counted for `status` and closed together when the node
/// stops.
/// Threads: any.
class connection_table {
public:
  /// `requests_max`: requests under way at once, which peers share; `requests_bytes_max`: their
  /// bytes. Some are kept for root and the service's own user, but `request_bytes_max`, the bytes
  /// of the largest request, for everyone.
  connection_table(
    std::uint64_t requests_max, std::uint64_t requests_bytes_max,
    std::uint64_t request_bytes_max = 0)
    : requests_(std::make_shared<lent_places>(
        requests_max, "requests under way (limits.requests_max)", places_kept(requests_max))),
      request_bytes_(std::make_shared<lent_places>(
        requests_bytes_max, "bytes of requests under way (limits.requests_size)",
        std::min(
          places_kept(requests_bytes_max),
          requests_bytes_max - std::min(requests_bytes_max, request_bytes_max)))) {}

  void add(const std::shared_ptr<net::channel>& c);
  void remove(const net::channel& c);
  std::size_t size() const;

  /// Lends a place for a request, until the last copy of what it returns goes.
  /// Errors:  `busy` when the peer has its share.
  result<std::shared_ptr<void>> place_for(const party& who, std::uint64_t size_bytes);
  request_load requests() const;

  /// Refuses requests with `unavailable` from now on.
  void refuse() noexcept { refusing_ = true; }
  bool refusing() const noexcept { return refusing_; }

  /// Closes every connection when its queued frames have been sent, or after `drain_ms`.
  void close_all(const status& why, std::uint32_t drain_ms);

private:
  const std::shared_ptr<lent_places> requests_;
  const std::shared_ptr<lent_places> request_bytes_;
  std::atomic<bool> refusing_ = false;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<net::channel>>
    open_; // by number: they close in their order
};

/// Makes the handler for one accepted connection. It lives as long as the channel.
std::shared_ptr<net::channel_handler> make_session(
  caf::actor_system& system, std::shared_ptr<transport::fabric> fabric,
  std::shared_ptr<const service_table> services, std::shared_ptr<connection_table> connections);

} // namespace millrace::actors
