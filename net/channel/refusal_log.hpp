// Limits the log lines about refused connections to one for each source and minute.
// Used where sockets are accepted. The class has no logger, so that a test can drive it.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/core/status.hpp>
#include <millrace/net/socket/socket_address.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace millrace::net {

/// Memory: `sources_max` entries. Sources beyond that share one entry.
class refusal_log {
public:
  static constexpr std::chrono::minutes period{1};

  explicit refusal_log(std::size_t sources_max = 1024) : sources_max_(sources_max) {}

  /// Returns the line to write for this refusal, if any: the reason, how many refusals of the
  /// source were not written since its last line, and one reason among those.
  std::optional<std::string> note(
    const std::string& source, const std::string& why, time_point now);

  /// Forgets all sources.
  void forget() {
    sources_.clear();
    others_ = {};
  }

private:
  struct entry {
    time_point written{};
    std::string why{};
    std::uint64_t unwritten = 0; // since then
    std::string other_why{};     // the first other reason among those
  };

  entry& entry_of(const std::string& source, time_point now, bool& shared);
  void forget_old(time_point now);

  const std::size_t sources_max_;
  std::unordered_map<std::string, entry> sources_;
  entry others_;
  time_point looked_{};
};

/// The unit by which connections are bounded, because one attacker has few of them: an IPv4
/// address, or the network half of an IPv6 address. Without the port.
std::string source_of(const socket_address& from);

/// Counts a refused connection from `source` to our `address`, and writes its line if one is due.
/// All listeners of the process share one table. Any thread.
void refused(const std::string& source, const status& why, std::string_view address = {});

/// The same for connections that cannot be accepted because the process or the system has no more
/// descriptors.
void no_descriptors_left(std::string_view address);

/// The number of refusals so far, written or not.
std::uint64_t refusals() noexcept;

/// Forgets all sources. For tests of log lines, which follow each other within a minute.
void forget_refusals();

} // namespace millrace::net
