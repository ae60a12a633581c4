// The base of those actors of a provider whose names can be watched: models, and checkpoints.
#pragma once

#include <millrace/actors/provider_actor.hpp>
#include <millrace/actors/watch_table.hpp>

#include <chrono>

namespace millrace::actors {

/// Parks watches, and tells their askers when they are over. The derived class lists `unwatch` and
/// `tell_news` among its handlers, has one of its own that calls `park`, and calls these overrides
/// from its own.
template <class Interface, class Context = operation_context>
class watched_actor : public provider_actor<Interface, Context> {
public:
  using provider_actor<Interface, Context>::provider_actor;

protected:
  void give_up_all(const status& why) override { watches_.give_up(why); }
  void ended(const caf::actor_addr& actor, const status&) override { watches_.lose(actor); }

  caf::result<done_reply> park(const watch_request& request) {
    auto deadline = deadline_of(request.timeout_ms, this->context_->bounds, this->now());
    auto added = watches_.add(this->watch_asker(), request, deadline);
    if (!added.ok())
      return to_caf_error(added);
    return done_reply{};
  }

  caf::result<done_reply> unwatch(const unwatch_request& request) {
    watches_.remove(this->watch_asker(), request.number);
    return done_reply{};
  }

  caf::result<watch_news> tell_news(const watch_news_request& request) {
    auto who = this->watch_asker();
    auto rp = this->template make_response_promise<watch_news>();
    watches_.tell(who, deadline_of(request.wait_ms, this->context_->bounds, this->now()), rp);
    return rp;
  }

  watch_table& watches() noexcept { return watches_; }

private:
  void look_at(time_point when) {
    this->delayed_send(
      this, when - this->now(), own_work{[this, when] { watches_.look(when, this->now()); }});
  }

  watch_table watches_{
    this->context_->provider, this->context_->bounds.watches_max,
    [this](time_point when) { look_at(when); }};
};

} // namespace millrace::actors
