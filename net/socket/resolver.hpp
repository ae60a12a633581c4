// Looks up host names without blocking a loop: a few threads call the system's resolver.
// Used to connect between hosts and to open listeners.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/net/socket/socket_address.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace millrace::net {

struct resolver_options {
  std::uint32_t threads_max = 4;
  std::uint32_t lookups_max = 256;  // names being looked up or waiting
  std::uint32_t addresses_max = 16; // the addresses of one name
};

/// Threads: any.
class resolver {
public:
  /// The blocking lookup; it may take arbitrarily long.
  using lookup = std::function<result<std::vector<socket_address>>(const std::string& host)>;

  virtual ~resolver() = default;

  static std::shared_ptr<resolver> make(lookup ask, resolver_options options = {});
  /// The resolver of the process, which calls getaddrinfo.
  static std::shared_ptr<resolver> shared();

  /// Passes the addresses of `host`, with `port`, to `done` in the order in which to try them.
  /// Numeric hosts need no lookup. Requests for the same name share a lookup. `done` runs on the
  /// loop.
  /// Errors: `unavailable` for an unknown name; `deadline_exceeded`; `busy`.
  virtual void resolve(
    const std::shared_ptr<io_loop>& loop, const std::string& host, std::uint16_t port,
    time_point deadline, completion<std::vector<socket_address>> done) = 0;
};

/// The same in the calling thread, with port 0. Blocks as long as the system takes.
/// Errors: `unavailable` for an unknown name.
result<std::vector<socket_address>> look_up(const std::string& host);

} // namespace millrace::net
