// Functions to run at given times, in the order of their times.
// Used by `io_loop` only, under its lock.
#pragma once

#include <millrace/core/clock.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

namespace millrace::net {

class timer_queue {
public:
  std::uint64_t add(time_point at, std::function<void()> f) {
    auto id = ++ids_;
    timers_.emplace(std::pair{at, id}, std::move(f));
    times_.emplace(id, at);
    return id;
  }

  /// Returns the function, so that the caller can destroy its captures without holding the lock.
  std::function<void()> cancel(std::uint64_t id) {
    auto found = times_.find(id);
    if (found == times_.end())
      return nullptr;
    auto node = timers_.extract({found->second, id});
    times_.erase(found);
    return std::move(node.mapped());
  }

  /// Takes out the first function that is due; null if there is none.
  std::function<void()> take_due(time_point now) {
    if (timers_.empty() || timers_.begin()->first.first > now)
      return nullptr;
    auto node = timers_.extract(timers_.begin());
    times_.erase(node.key().second);
    return std::move(node.mapped());
  }

  time_point next() const {
    return timers_.empty() ? time_point::max() : timers_.begin()->first.first;
  }

private:
  std::uint64_t ids_ = 0;
  std::map<std::pair<time_point, std::uint64_t>, std::function<void()>> timers_;
  std::unordered_map<std::uint64_t, time_point> times_;
};

} // namespace millrace::net
