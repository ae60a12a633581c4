// A client's durable connection to one address: connects at first use, reconnects after loss.
// Held by the proxies of remote actors; reports itself to `status`.
#pragma once

#include <millrace/net/channel/channel.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace millrace::net {

struct link_options {
  std::string address; // "unix:/absolute/path" or "tls://host:port"
  /// Several ways to the same node, tried in this order by each attempt; `address` is only its name then.
  /// A Unix socket that is not there costs no time.
  std::vector<std::string> addresses = {};
  channel_options channel;
  std::uint32_t connect_timeout_ms = 5000; // for one attempt at all addresses, handshake included
  std::uint32_t backoff_min_ms = 50;       // between attempts; doubles after each failure
  std::uint32_t backoff_max_ms = 2000;
};

/// How a link stands.
struct link_state {
  enum class phase : std::uint8_t { idle, connecting, open, waiting, closed };
  phase now = phase::idle;  // `waiting`: for the time of the next attempt
  std::uint64_t opened = 0; // connections that came to be
  std::uint64_t failed = 0; // attempts in a row that failed
  status last_cause;        // why the last connection or attempt ended
};

/// Threads: any. Destruction closes the channel, answers who waits, and never blocks.
class link {
public:
  virtual ~link() = default;

  /// `make_handler` gives the handler of each new connection; it is called on the loop.
  static std::shared_ptr<link> make(
    const std::shared_ptr<io_loop>& loop, const link_options& options,
    std::function<std::shared_ptr<channel_handler>()> make_handler);

  /// Gives the open channel, at once on this thread if there is one, else after one attempt to
  /// connect.
  ///
  /// Errors: while the backoff after a failure lasts, at once: `peer_lost` when a connection was
  /// lost, `unavailable` otherwise, naming the address and the last cause. After an attempt, as
  /// `connect`.
  virtual void acquire(completion<std::shared_ptr<channel>> done) = 0;

  virtual link_state state() const = 0;
  virtual const std::string& address() const noexcept = 0;

  /// Closes the channel and connects no more; later uses fail with `unavailable`.
  virtual void close(status why, std::uint32_t drain_ms = 0) = 0;
};

} // namespace millrace::net
