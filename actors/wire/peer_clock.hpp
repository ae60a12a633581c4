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
/// clock so far belongs to the request that was under way for the shortest time; any other one is
/// as much older as its difference is greater. So an age is never too great, and too small by that
/// shortest time. The first request of a connection has no age.
class peer_clock {
public:
  /// `drifts`: the peer is on another host, whose clock may run at another speed.
  explicit peer_clock(bool drifts = false) : drifts_(drifts) {}

  /// Returns for how long a request has been under way.
  std::uint64_t age_ms(std::uint64_t sent_ms, time_point now) {
    auto now_ms = ms_of(now);
    // A peer may send any number, so these wrap.
    auto difference = static_cast<std::int64_t>(now_ms - sent_ms);
    auto since_last = now_ms - std::exchange(last_ms_, now_ms);
    if (drifts_ && least_)
      least_ =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(*least_) + since_last / drift_part);
    least_ = std::min(least_.value_or(difference), difference);
    return static_cast<std::uint64_t>(difference) - static_cast<std::uint64_t>(*least_);
  }

  static std::uint64_t ms_of(time_point t) {
    using std::chrono::milliseconds;
    return static_cast<std::uint64_t>(
      std::chrono::duration_cast<milliseconds>(t.time_since_epoch()).count());
  }

private:
  static constexpr std::uint64_t drift_part = 1024; // no clock is worse

  bool drifts_;
  std::optional<std::int64_t> least_;
  std::uint64_t last_ms_ = 0;
};

} // namespace millrace::actors
