// Host names to addresses, without blocking a loop: a few threads ask the system's resolver.
// Used when connecting between hosts, and when a listener opens.
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
  std::uint32_t lookups_max = 256;  // names that are looked up or wait for it
  std::uint32_t addresses_max = 16; // of one name
};

/// Threads: any.
class resolver {
public:
  /// Asks the system; may take as long as it likes.
  using lookup = std::function<result<std::vector<socket_address>>(const std::string& host)>;

  virtual ~resolver() = default;

  static std::shared_ptr<resolver> make(lookup ask, resolver_options options = {});
  /// One for all of the process, which asks getaddrinfo.
  static std::shared_ptr<resolver> shared();

  /// Gives the addresses of `host`, with `port`, in the order in which to try them; numeric ones at once.
  /// Requests for one name share a lookup. `done` runs on the loop.
  /// Errors: `unavailable` for a name that is not known; `deadline_exceeded`; `busy`.
  virtual void resolve(
    const std::shared_ptr<io_loop>& loop, const std::string& host, std::uint16_t port,
    time_point deadline, completion<std::vector<socket_address>> done) = 0;
};

/// The same in the calling thread, with port 0: as long as the system takes.
/// Errors: `unavailable` for a name that is not known.
result<std::vector<socket_address>> look_up(const std::string& host);

} // namespace millrace::net
