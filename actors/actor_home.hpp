// Brings the outcomes of other threads' work back into an actor. Base of the contexts that an
// actor's operations share.
#pragma once

#include <millrace/actors/delivery.hpp>

#include <caf/actor_addr.hpp>

#include <memory>
#include <utility>

namespace millrace::actors {

/// Lives as long as an operation needs it, which may be longer than its actor. Outcomes that come
/// after the actor's end are dropped.
class actor_home : public std::enable_shared_from_this<actor_home> {
public:
  actor_home(caf::actor_system& system, const caf::strong_actor_ptr& self)
    : system_(system), self_(caf::actor_cast<caf::actor_addr>(self)) {}
  virtual ~actor_home() = default;
  actor_home(const actor_home&) = delete;
  actor_home& operator=(const actor_home&) = delete;

  /// Wraps `f(result<T>)` into a completion that brings the outcome home. `f` always runs in the
  /// actor, and at once if one of the actor's handlers calls the completion.
  template <class T, class F>
  completion<T> home(F f) {
    return [self = shared_from_this(), f = std::move(f)](result<T> outcome) mutable {
      if (running == self.get())
        return f(std::move(outcome));
      auto actor = caf::actor_cast<caf::strong_actor_ptr>(self->self_);
      if (!actor)
        return;
      auto boxed = std::make_shared<result<T>>(std::move(outcome));
      // `f` is moved: the calling thread may keep the completion after it ran, and the captures of
      // `f` must not live that long.
      run_in(self->system_, actor, [f = std::move(f), boxed]() mutable { f(std::move(*boxed)); });
    };
  }

  /// Marks this thread as being inside the actor while the object lives.
  class entered {
  public:
    explicit entered(actor_home& home) : outer_(std::exchange(running, &home)) {}
    ~entered() { running = outer_; }
    entered(const entered&) = delete;
    entered& operator=(const entered&) = delete;

  private:
    actor_home* outer_;
  };

protected:
  caf::actor_system& system() const noexcept { return system_; }

private:
  static thread_local actor_home* running;

  caf::actor_system& system_;
  caf::actor_addr self_;
};

} // namespace millrace::actors
