// Runs actors under the deterministic scheduler, with a clock that the test moves.
// Used by tests of actors.
#pragma once

#include <millrace/actors/service.hpp>
#include <millrace/actors/vocabulary.hpp>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <caf/typed_actor.hpp>

namespace millrace::testing {

/// Returns a process that asks, of an owner as "user 1".
inline actors::asker process_of(const std::string& owner) {
  auto id = random_id<peer_id>();
  return {id, 1, {owner, id, false}};
}

struct deterministic_config : caf::actor_system_config {
  deterministic_config() { set("scheduler.policy", caf::atom("testing")); }
};

struct actor_fixture {
  deterministic_config config;
  caf::actor_system system{config};
  caf::scheduler::test_coordinator& sched =
    dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  caf::scoped_actor self{system};

  actor_fixture() { system.await_actors_before_shutdown(false); }

  template <class Handle, class Request>
  auto ask(const Handle& whom, Request r) {
    auto pending = self->request(whom, caf::infinite, std::move(r));
    sched.run();
    return pending;
  }

  /// Returns the outcome of a request that has been answered.
  template <class Reply, class Pending>
  static result<Reply> outcome(Pending& pending) {
    result<Reply> out = fail(errc::internal, "");
    pending.receive(
      [&](Reply& r) { out = std::move(r); },
      [&](caf::error& e) { out = fail(actors::to_status(e)); });
    return out;
  }

  /// Returns true if there is an answer that the test has not read.
  bool answered() { return self->has_next_message(); }

  /// Lets time pass, in steps in which actors check their deadlines.
  void pass(std::chrono::milliseconds time) {
    constexpr std::chrono::milliseconds step{250};
    for (; time.count() > 0; time -= step) {
      sched.advance_time(step);
      sched.run();
    }
  }
};

} // namespace millrace::testing
