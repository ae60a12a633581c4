// A client's connection to one address, which connects at first use and again after a loss.
// Held by `actors/wire/remote_node`; reports its state to `status`.
#pragma once

#include <millrace/net/channel/network.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace millrace::net {

struct link_options {
  std::string address; // "unix:/absolute/path" or "tls://host:port"
  /// Several addresses of the same node, which each attempt tries in this order. `address` is then
  /// only its name. A Unix socket that does not exist costs no time.
  std::vector<std::string> addresses = {};
  channel_options channel;
  std::uint32_t connect_timeout_ms = 5000; // for one attempt at all addresses, handshake included
  std::uint32_t backoff_min_ms = 50;       // between attempts; doubles after each failure
  std::uint32_t backoff_max_ms = 2000;
  std::shared_ptr<network> via = network::of_system();
};

/// The state of a link.
struct link_state {
  enum class phase : std::uint8_t { idle, connecting, open, waiting, closed };
  phase now = phase::idle;  // `waiting`: for the next attempt
  std::uint64_t opened = 0; // connections that succeeded
  std::uint64_t failed = 0; // attempts in a row that failed
  status last_cause;        // why the last connection or attempt ended
};

/// Threads: any. Destruction closes the channel, answers all waiting callers, and never blocks.
class link {
public:
  virtual ~link() = default;

  /// `make_handler` returns the handler of each new connection. It is called on the loop.
  static std::shared_ptr<link> make(
    const std::shared_ptr<io_loop>& loop, const link_options& options,
    std::function<std::shared_ptr<channel_handler>()> make_handler);

  /// Passes the open channel to `done`: at once on this thread if there is one, otherwise after one
  /// attempt to connect.
  ///
  /// Errors: during the backoff after a failure, at once: `peer_lost` when a connection was lost,
  /// otherwise `unavailable`; both name the address and the last cause. After an attempt, those of
  /// `connect`.
  virtual void acquire(completion<std::shared_ptr<channel>> done) = 0;
  /// Returns the channel, or null if it is not open; then `acquire` says why, or connects.
  virtual std::shared_ptr<channel> open_channel() const = 0;

  virtual link_state state() const = 0;
  virtual const std::string& address() const noexcept = 0;

  /// Closes the channel and does not connect again. Later uses fail with `unavailable`.
  virtual void close(status why, std::uint32_t drain_ms = 0) = 0;
};

} // namespace millrace::net
