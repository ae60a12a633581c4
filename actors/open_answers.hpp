// The answers that an actor owes while another thread works on them. Used by actors that ask
// buckets or peers.
#pragma once

#include <millrace/actors/vocabulary.hpp>
#include <millrace/core/clock.hpp>

#include <caf/typed_response_promise.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

namespace millrace::actors {

template <class Reply>
void answer_with(caf::typed_response_promise<Reply>& rp, result<Reply> outcome) {
  if (!outcome)
    rp.deliver(to_caf_error(outcome.error()));
  else
    rp.deliver(std::move(*outcome));
}

/// Answers each request once, even if the actor ends.
///
/// *Problem*: a promise that is destroyed with its actor answers nothing, and the caller waits
/// until its deadline. An outcome that arrives after the actor has ended is dropped, and its
/// promise with it. So a promise stays here until it is kept, and `give_up_all` in the actor's
/// `on_exit` answers the rest. It stays only here: a promise holds its actor, and a bucket or a
/// peer that never answers would keep it for ever.
///
/// A member of one actor, used inside that actor only.
class open_answers {
public:
  /// Returns a function that answers the promise, for use inside the actor. Calls after the first,
  /// or after the promise was given up, do nothing.
  template <class Reply>
  std::function<void(result<Reply>)> keep(
    caf::typed_response_promise<Reply> rp, time_point deadline = time_point::max()) {
    auto number = next_++;
    auto kept = std::make_shared<caf::typed_response_promise<Reply>>(std::move(rp));
    open_.emplace(
      number, owed{deadline, [kept](const status& why) { kept->deliver(to_caf_error(why)); }});
    return [this, number, promise = std::weak_ptr{kept}](result<Reply> outcome) {
      auto kept = promise.lock();
      if (kept && open_.erase(number) > 0)
        answer_with(*kept, std::move(outcome));
    };
  }

  /// Gives up those whose deadline is before `now`.
  void give_up_late(time_point now, const status& why) {
    std::erase_if(open_, [&](auto& entry) {
      auto is_late = entry.second.deadline < now;
      if (is_late)
        entry.second.give_up(why);
      return is_late;
    });
  }

  void give_up_all(const status& why) {
    for (auto& [number, answer] : std::exchange(open_, {}))
      answer.give_up(why);
  }

  bool empty() const noexcept { return open_.empty(); }

private:
  struct owed {
    time_point deadline;
    std::function<void(const status&)> give_up;
  };

  std::uint64_t next_ = 1;
  std::map<std::uint64_t, owed> open_;
};

} // namespace millrace::actors
