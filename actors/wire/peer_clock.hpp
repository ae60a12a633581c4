// Tells how old the requests of a peer are. Used by sessions.
#pragma once

#include <millrace/core/clock.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace millrace::actors {

/// Compares the clock of one connection's peer with ours.
///
/// *Problem*: a process that stood still finds requests in its sockets whose askers have given them
/// up and asked for something else since, on another connection. A store among them must not
/// replace what was stored later. When a request arrived does not tell how old it is.
///
/// The peer says by its own monotonic clock when it sent a request. The least difference to our
/// clock belongs to the request that was under way for the shortest time; any other one is as much
/// older as its difference is greater. So an age is too small by that shortest time. The first
/// request of a connection has no age.
///
/// The clocks of two hosts drift, and one stands while its host is suspended. So differences are
/// forgotten after two periods. Requests that arrive together after a long pause are in one period,
/// and are still compared with those before the pause.
class peer_clock {
public:
  static constexpr std::uint64_t period_ms = 60'000;

  /// Returns for how long a request has been under way.
  std::uint64_t age_ms(std::uint64_t sent_ms, time_point now) {
    auto now_ms = ms_of(now);
    // A peer may send any number, so this wraps.
    auto difference = static_cast<std::int64_t>(now_ms - sent_ms);
    if (now_ms - begun_ms_ >= period_ms) {
      begun_ms_ = now_ms;
      former_ = std::exchange(least_, std::nullopt);
    }
    least_ = std::min(least_.value_or(difference), difference);
    auto least = std::min(former_.value_or(difference), *least_);
    return static_cast<std::uint64_t>(difference) - static_cast<std::uint64_t>(least);
  }

  static std::uint64_t ms_of(time_point t) {
    using std::chrono::milliseconds;
    return static_cast<std::uint64_t>(
      std::chrono::duration_cast<milliseconds>(t.time_since_epoch()).count());
  }

private:
  std::optional<std::int64_t> former_, least_; // the last period's and this one's
  std::uint64_t begun_ms_ = 0;
};

} // namespace millrace::actors
