// The actor in whose name a client asks: carries replies from actors to futures. Internal: needs CAF.
#pragma once

#include <millrace/actors/delivery.hpp>
#include <millrace/actors/envelope.hpp>
#include <millrace/runtime/client_core.hpp>

#include <caf/typed_event_based_actor.hpp>

namespace millrace::runtime {

using caller_actor = caf::typed_actor<caf::reacts_to<actors::step>>;

class caller : public actors::handed_over<caller_actor::base> {
public:
  using handed_over::handed_over;

  const char* name() const override { return "caller"; }

  behavior_type make_behavior() override {
    set_default_handler(caf::drop);
    return {[](actors::step& s) { s.run(); }};
  }

  // Whoever is asked answers within the request's time: stores by their tick, proxies by theirs.
  template <class Handle, class Request, class Reply>
  void ask(const Handle& target, Request request, completion<Reply> done) {
    auto shared = std::make_shared<completion<Reply>>(std::move(done));
    // What the completion owns goes before the handler ends: it may be the last to hold the client.
    auto finish = [shared](result<Reply> outcome) {
      actors::handler_scope inside;
      auto f = std::move(*shared);
      f(std::move(outcome));
    };
    this->request(target, caf::infinite, std::move(request))
      .then(
        [finish](Reply& reply) { finish(std::move(reply)); },
        [finish](caf::error& e) { finish(fail(actors::to_status(e))); });
  }
};

template <class Handle, class Request, class Reply>
void client_core::ask(const Handle& target, Request request, completion<Reply> done) {
  auto* actor = caf::actor_cast<caller*>(caller_);
  actors::run_in(
    engine_->system(), caller_,
    [actor, target, request = std::move(request), done = std::move(done)]() mutable {
      actor->ask<Handle, Request, Reply>(target, std::move(request), std::move(done));
    });
}

} // namespace millrace::runtime
