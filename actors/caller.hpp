// The actor that asks other actors for code outside of actors, and in which replies are handled one
// at a time. Used by clients.
#pragma once

#include <millrace/actors/delivery.hpp>
#include <millrace/actors/supervision.hpp>
#include <millrace/core/log.hpp>

#include <caf/typed_event_based_actor.hpp>

#include <memory>
#include <utility>

namespace millrace::actors {

using caller_actor = caf::typed_actor<caf::reacts_to<own_work>>;

class caller : public handed_over<caller_actor::base> {
public:
  using handed_over::handed_over;

  const char* name() const override { return "caller"; }

  behavior_type make_behavior() override {
    set_default_handler(caf::drop);
    return {[](own_work& s) {
      handler_scope inside;
      auto work = std::move(s.run); // may hold the last reference to the client, as in `finish`
      try {
        work();
      } catch (...) {
        log().error("a client's actor: {}", what_of(std::current_exception()));
      }
    }};
  }

  /// Asks an actor. The requests of a client do not depend on one another, so one that fails ends
  /// alone.
  // This sets no timeout, since every actor answers within the request's time, by its tick.
  template <class Reply, class Handle, class Request>
  void ask(const Handle& target, Request request, completion<Reply> done) {
    auto shared = std::make_shared<completion<Reply>>(std::move(done));
    auto finish = [shared](result<Reply> outcome) {
      caller::finish(std::move(*shared), std::move(outcome));
    };
    try {
      MILLRACE_PLANTED_FAULT(typeid(caller));
      this->request(target, caf::infinite, std::move(request))
        .then(
          [finish](Reply& reply) { finish(std::move(reply)); },
          [finish](caf::error& e) { finish(fail(to_status(e))); });
    } catch (...) {
      finish(fail(failure_of("asking", name_of(typeid(Request)), std::current_exception())));
    }
  }

  /// Runs what a reply is for, inside the caller. It is destroyed before the handler ends, since it
  /// may hold the last reference to the client.
  template <class Reply>
  static void finish(completion<Reply> done, result<Reply> outcome) {
    handler_scope inside;
    auto f = std::move(done);
    try {
      f(std::move(outcome));
    } catch (...) {
      log().error(
        "what a reply was for failed ({}): {}", name_of(typeid(Reply)),
        what_of(std::current_exception()));
    }
  }
};

/// Asks `target` on behalf of a `caller`. Threads: any.
template <class Reply, class Handle, class Request>
void ask_as(
  caf::actor_system& system, const caf::strong_actor_ptr& who, const Handle& target,
  Request request, completion<Reply> done) {
  run_in(
    system, who,
    [actor = caf::actor_cast<caller*>(who), target, request = std::move(request),
     done = std::move(done)]() mutable {
      actor->ask<Reply>(target, std::move(request), std::move(done));
    });
}

/// Runs what a reply is for in a `caller`. Threads: any.
template <class Reply>
void finish_in(
  caf::actor_system& system, const caf::strong_actor_ptr& who, completion<Reply> done,
  result<Reply> outcome) {
  run_in(system, who, [done = std::move(done), outcome = std::move(outcome)]() mutable {
    caller::finish(std::move(done), std::move(outcome));
  });
}

} // namespace millrace::actors
