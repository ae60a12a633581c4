// Says who was refused, without letting strangers fill the log. Used by whatever accepts sockets.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/core/status.hpp>

#include <cstdint>
#include <map>
#include <string>

namespace millrace::transport {

/// Decides which refusals are worth a line: the first of each source, then one a minute with the number of those
/// in between. Remembers so many sources at most; all others share one entry.
class refusal_log {
public:
  explicit refusal_log(std::size_t sources_max = 1024) : sources_max_(sources_max) {}

  /// How many refusals a line shall speak for, or 0 for no line.
  std::uint64_t note(const std::string& source, time_point now);

  std::size_t sources() const noexcept { return known_.size(); }

private:
  struct entry {
    time_point said_at;
    std::uint64_t since = 0; // refusals without a line
  };
  void forget_old(time_point now);

  std::size_t sources_max_;
  std::map<std::string, entry> known_;
};

/// Logs the refusal of a connection from `source` (an address without its port), once per source and minute.
/// Any thread.
void refused(const std::string& source, const status& why);

/// Refusals of this process so far, logged or not.
std::uint64_t refusals() noexcept;

} // namespace millrace::transport
