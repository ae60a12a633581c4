// A connection to another process. It matches replies to requests. Clients ask the actors of that
// process through it, see `ask_remote`.
#pragma once

#include <millrace/core/codec.hpp>
#include <millrace/core/status.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/net/channel/link.hpp>
#include <millrace/transport/fabric.hpp>

#include <memory>
#include <span>
#include <string>

namespace millrace::actors {

/// The outcome of a request: the body of the reply frame (valid during the call), or the error.
using raw_reply = result<std::span<const std::byte>>;

/// Connects when it is first needed, and again after the connection was lost.
///
/// Every request ends: with its reply, with `peer_lost` when the connection breaks (the request may
/// have been served), with `unavailable` when no connection can be made, or with
/// `deadline_exceeded`.
/// Threads: any.
class remote_node : public std::enable_shared_from_this<remote_node> {
public:
  static std::shared_ptr<remote_node> create(
    const std::shared_ptr<net::io_loop>& loop, std::shared_ptr<transport::fabric> fabric,
    const net::link_options& options);
  virtual ~remote_node() = default;

  virtual const std::string& address() const noexcept = 0;
  /// Returns true if a request would leave now. If not, it waits for a connection, or fails.
  virtual bool is_connected() const = 0;

  /// Sends a request frame; its body is not needed any more when this returns. `done` runs once, on
  /// any thread.
  virtual void ask(
    std::span<const std::byte> body, std::uint32_t timeout_ms,
    std::function<void(raw_reply)> done) = 0;

  /// Fails the requests under way and makes no more connections.
  virtual void close(const status& why) = 0;
};

} // namespace millrace::actors
