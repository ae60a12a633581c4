// Says of which refusals a line is written: one for a source and minute, however many there are.
// Used by whatever accepts sockets; the class knows no logger, so that a test can drive it.
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

/// Memory: `sources_max` entries; sources beyond them share one.
class refusal_log {
public:
  static constexpr std::chrono::minutes period{1};

  explicit refusal_log(std::size_t sources_max = 1024) : sources_max_(sources_max) {}

  /// What to write for a refusal now, if anything: why, how many of the source were not written since its last line,
  /// and one reason among those that neither line tells.
  std::optional<std::string> note(
    const std::string& source, const std::string& why, time_point now);

  /// Every source is new again.
  void forget() {
    sources_.clear();
    others_ = {};
  }

private:
  struct entry {
    time_point written{};
    std::string why{};
    std::uint64_t unwritten = 0; // since
    std::string other_why{};     // the first of those that was another
  };

  entry& entry_of(const std::string& source, time_point now, bool& shared);
  void forget_old(time_point now);

  const std::size_t sources_max_;
  std::unordered_map<std::string, entry> sources_;
  entry others_;
  time_point looked_{};
};

/// What one attacker has one of: an IPv4 address, or the network half of an IPv6 one. Without the port.
std::string source_of(const socket_address& from);

/// Writes the line for a connection from `source` that was refused, if there is one; `address`: ours that it came to.
/// One table for all listeners of the process. Any thread.
void refused(const std::string& source, const status& why, std::string_view address = {});

/// The same for connections that cannot be accepted because the process or the system has no more descriptors.
void no_descriptors_left(std::string_view address);

/// Refusals told to `refused` so far, written or not.
std::uint64_t refusals() noexcept;

/// Every source is new again: tests of lines follow each other faster than a minute.
void forget_refusals();

} // namespace millrace::net
