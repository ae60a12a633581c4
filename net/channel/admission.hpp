// The side of a listener on the loop: it decides whom to admit, and counts the connections. Base of
// the admission at Unix sockets (listener.cpp) and on networks (tls/network_admission).
#pragma once

#include <millrace/core/fair_shares.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/net/channel/newcomers.hpp>
#include <millrace/net/socket/acceptor.hpp>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::net {

/// A handler for an admitted connection, and the connection's place among all.
struct admitted {
  std::shared_ptr<channel_handler> handler;
  std::shared_ptr<void> place;
};

/// Threads: the loop, but for `shut`. Made by `make_shared` only.
class admission : public std::enable_shared_from_this<admission> {
public:
  admission(
    std::shared_ptr<io_loop> loop, listener_options where, const channel_options& options,
    accept_function accept, std::vector<unique_fd> sockets)
    : loop(std::move(loop)), where(std::move(where)), options(options),
      newcomers(this->where.handshakes_max, per_source_max_of(this->where)),
      shares_(shares_of(this->where)), accept_(std::move(accept)), sockets_(std::move(sockets)) {}
  virtual ~admission() = default;

  void open();
  /// Any thread: once it returns, no connection is admitted any more.
  virtual void shut();
  /// After `shut`.
  void close();

  /// Logs a refusal within bounds, unless this side itself is ending.
  void refused(const std::string& source, const status& why) const;

  const std::shared_ptr<io_loop> loop;
  const listener_options where;
  const channel_options options;
  net::newcomers newcomers; // connections that have not proved themselves

protected:
  virtual void receive(unique_fd fd, const socket_address& from) = 0;
  /// Asks the service, and takes a place for the peer.
  /// Errors: `busy` when the peer has its share of the connections; `unavailable` after `shut`; the
  /// reason for which the service refuses the peer.
  result<admitted> place_for(const peer_info& peer);

private:
  static std::uint32_t per_source_max_of(const listener_options& where);

  const std::shared_ptr<fair_shares> shares_;
  std::mutex accept_mutex_;
  accept_function accept_;         // null once shut
  std::vector<unique_fd> sockets_; // until `open`
  std::shared_ptr<acceptor> acceptor_;
};

/// Opens it; the listener shuts and closes it when stopped.
std::shared_ptr<listener> listener_of(std::shared_ptr<admission> a);

} // namespace millrace::net
