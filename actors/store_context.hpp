// What the operations of one tensor store share: its rooms, its counters, and the way home to its actor.
#pragma once

#include <millrace/actors/delivery.hpp>
#include <millrace/actors/tensor_store.hpp>
#include <millrace/core/clock.hpp>

#include <caf/actor_addr.hpp>

#include <algorithm>
#include <memory>
#include <utility>

namespace millrace::actors {

/// Lives as long as an operation needs it; everything but `home` runs in the actor.
class store_context : public std::enable_shared_from_this<store_context> {
public:
  store_context(caf::actor_system& system, caf::strong_actor_ptr self, tensor_store_deps deps)
    : deps(std::move(deps)), system_(system), self_(caf::actor_cast<caf::actor_addr>(self)) {}

  const tensor_store_deps deps;
  provider_status counters; // only the counting fields are kept here

  /// Wraps `f(result<T>)` into a completion that brings the outcome home: `f` always runs in the actor, at once
  /// when the completion is called from one of its handlers.
  template <class T, class F>
  completion<T> home(F f) {
    return [self = shared_from_this(), f = std::move(f)](result<T> outcome) mutable {
      if (running == self.get())
        return f(std::move(outcome));
      auto actor = caf::actor_cast<caf::strong_actor_ptr>(self->self_);
      if (!actor)
        return;
      auto boxed = std::make_shared<result<T>>(std::move(outcome));
      run_in(self->system_, actor, [f, boxed]() mutable { f(std::move(*boxed)); });
    };
  }

  /// Marks the thread as being inside the actor while it lives.
  class entered {
  public:
    explicit entered(store_context& context) : outer_(std::exchange(running, &context)) {}
    ~entered() { running = outer_; }
    entered(const entered&) = delete;
    entered& operator=(const entered&) = delete;

  private:
    store_context* outer_;
  };

private:
  static thread_local store_context* running;

  caf::actor_system& system_;
  caf::actor_addr self_;
};

inline std::uint64_t us_between(time_point from, time_point to) {
  return static_cast<std::uint64_t>(
    std::chrono::duration_cast<std::chrono::microseconds>(to - from).count());
}

/// An operation under way. It answers exactly once. `arrived` is the actor system's time, which tests hold still.
class operation {
public:
  virtual ~operation() = default;
  /// Starts it; may finish before returning.
  virtual void begin() = 0;
  /// Answers with an error unless it has answered; what it holds goes as soon as nobody uses it.
  virtual void give_up(const status& why) = 0;
  virtual bool answered() const noexcept = 0;
  virtual time_point deadline() const noexcept = 0;
};

/// How an operation reports its end to its store. Runs in the actor, once.
template <class Receipt>
using answer = std::function<void(result<Receipt>)>;

/// What stores and loads have in common: their time, and that they answer once.
template <class Request, class Receipt>
class timed_operation : public operation {
public:
  timed_operation(
    std::shared_ptr<store_context> context, Request request, time_point arrived,
    answer<Receipt> done)
    : context_(std::move(context)), request_(std::move(request)), done_(std::move(done)),
      created_(steady_clock::now()) {
    auto& limits = context_->deps.limits;
    auto timeout_ms = request_.timeout_ms == 0
      ? limits.request_timeout_ms
      : std::min(request_.timeout_ms, limits.request_timeout_ms);
    deadline_ = arrived + std::chrono::milliseconds{timeout_ms};
  }

  void begin() final {
    begun_ = steady_clock::now();
    receipt_.times.queued_us = us_between(created_, begun_);
    start();
  }

  void give_up(const status& why) final {
    if (!answered_)
      end(fail(why));
  }

  bool answered() const noexcept final { return answered_; }
  time_point deadline() const noexcept final { return deadline_; }

protected:
  virtual void start() = 0;
  /// Returns what the bucket lent. Windows that movers may still touch keep their memory.
  virtual void let_go() = 0;

  void succeed() { end(std::move(receipt_)); }

  std::shared_ptr<store_context> context_;
  Request request_;
  Receipt receipt_;
  time_point begun_;

private:
  void end(result<Receipt> outcome) {
    answered_ = true;
    let_go();
    std::exchange(done_, nullptr)(std::move(outcome));
  }

  answer<Receipt> done_;
  time_point created_, deadline_;
  bool answered_ = false;
};

std::shared_ptr<operation> make_store_operation(
  std::shared_ptr<store_context> context, store_request request, time_point arrived,
  answer<store_receipt> done);

std::shared_ptr<operation> make_load_operation(
  std::shared_ptr<store_context> context, load_request request, time_point arrived,
  answer<load_receipt> done);

} // namespace millrace::actors
