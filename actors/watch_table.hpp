// The watches that are parked in one actor, and what their askers have yet to hear of them. Owned
// by `watched_actor`.
#pragma once

#include <millrace/actors/watch_messages.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/fair_shares.hpp>

#include <caf/actor_addr.hpp>
#include <caf/typed_response_promise.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace millrace::actors {

/// Used inside one actor only. A watch costs no time until it is over: nothing walks the table, and
/// there is one timer, for the earliest deadline.
class watch_table {
public:
  using watcher = caf::actor_addr; // a connection's, or a client's of this process
  using promise = caf::typed_response_promise<watch_news>;

  /// `watches_max`: watches that are parked, or over and not yet heard of; processes share them.
  /// `look_at(when)` makes the actor call `look(when, now)` then.
  watch_table(
    std::string provider, std::uint64_t watches_max, std::function<void(time_point)> look_at)
    : provider_(std::move(provider)), places_(watches_max), look_at_(std::move(look_at)) {}

  /// Errors:  `busy` when the process has its share; `invalid_argument` for a number in use.
  status add(const watcher& who, const watch_request& what, time_point deadline);
  void remove(const watcher& who, std::uint64_t number);
  /// Answers the promise when a watch of `who` is over, or at `until`.
  void tell(const watcher& who, time_point until, promise rp);

  /// A name has a new version, or a complete step, of this number. Costs one look-up of the name
  /// where nothing watches it.
  void reached(const std::string& name, std::uint64_t number);
  /// Ends every watch with an error.
  void end_all(const status& why);
  /// Forgets all watches of one that is gone.
  void lose(const watcher& who);
  /// Refuses those that wait for news. Called when the actor ends.
  void give_up(const status& why);

  void look(time_point armed_for, time_point now);

  std::size_t size() const noexcept { return watches_.size(); }

private:
  using key = std::pair<watcher, std::uint64_t>; // number 0: the request for news

  struct watch {
    std::string name;
    bool any = false;
    std::uint64_t than = 0;
    time_point deadline;
  };
  struct listener {
    party holder; // of the places
    std::size_t parked = 0;
    std::deque<watch_outcome> over; // not yet told
    std::optional<promise> asked;
    time_point until;
  };
  using listeners = std::map<watcher, listener>;

  status refusal(const party& who) const;
  void expect(time_point when, const key& what);
  void end(const key& which, const status& why);
  void forget(std::map<key, watch>::iterator at);
  void answer(listeners::iterator at, bool is_late = false);
  void answer_all(const std::set<watcher>& ended);

  const std::string provider_;
  fair_shares places_;
  const std::function<void(time_point)> look_at_;
  std::map<key, watch> watches_;
  std::unordered_map<std::string, std::set<key>> by_name_;
  std::set<std::pair<time_point, key>> deadlines_;
  listeners listeners_;
  time_point armed_for_ = time_point::max();
};

} // namespace millrace::actors
