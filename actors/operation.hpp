// One request a provider works on: its time, its one answer, what it shares with the others of its actor.
#pragma once

#include <millrace/actors/actor_home.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/transport/fabric.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace millrace::actors {

/// Bounds of every operation.
struct operation_limits {
  std::uint32_t windows_max = 8;                    // windows in flight per operation
  std::uint32_t eager_bytes_max = 4096;             // payloads up to this ride in messages
  std::uint32_t request_timeout_ms = 60'000;        // of requests that name no time
  std::uint32_t request_timeout_max_ms = 3'600'000; // of those that do
};

/// What the operations of one provider's actor need. Everything but `home` runs in the actor.
class operation_context : public actor_home {
public:
  operation_context(
    caf::actor_system& system, const caf::strong_actor_ptr& self, std::string provider,
    std::shared_ptr<transport::fabric> fabric, const operation_limits& bounds)
    : actor_home(system, self), provider(std::move(provider)), fabric(std::move(fabric)),
      bounds(bounds) {}

  /// Called when the actor ends. Contexts that hold a bucket or a store let go of it, which may keep completions that
  /// keep the context.
  void let_go() {}

  const std::string provider;
  const std::shared_ptr<transport::fabric> fabric;
  const operation_limits bounds;
};

inline std::uint64_t us_between(time_point from, time_point to) {
  return static_cast<std::uint64_t>(
    std::chrono::duration_cast<std::chrono::microseconds>(to - from).count());
}

/// When a request that arrived now must have been answered.
inline time_point deadline_of(
  std::uint32_t timeout_ms, const operation_limits& bounds, time_point arrived) {
  auto bounded = timeout_ms == 0 ? bounds.request_timeout_ms
                                 : std::min(timeout_ms, bounds.request_timeout_max_ms);
  return arrived + std::chrono::milliseconds{bounded};
}

/// Why a request was given up at its deadline.
inline status late(const std::string& provider, const std::string& what) {
  return {
    errc::deadline_exceeded,
    "provider {} did not {} within the request's time (which is at most "
    "limits.request_timeout_max)",
    provider, what};
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

/// How an operation reports its end to its actor. Runs in the actor, once.
template <class Receipt>
using answer = std::function<void(result<Receipt>)>;

/// What operations have in common: their time, and that they answer once.
template <class Request, class Receipt>
class timed_operation : public operation {
public:
  timed_operation(
    std::shared_ptr<operation_context> context, Request request, time_point arrived,
    answer<Receipt> done)
    : context_(std::move(context)), request_(std::move(request)), done_(std::move(done)),
      created_(steady_clock::now()),
      deadline_(deadline_of(request_.timeout_ms, context_->bounds, arrived)) {}

  void begin() final {
    begun_ = steady_clock::now();
    if constexpr (requires { receipt_.times.queued_us; })
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
  /// Returns what storage lent. Windows that movers may still touch keep their memory.
  virtual void let_go() = 0;

  void succeed() { end(std::move(receipt_)); }

  std::shared_ptr<operation_context> context_;
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

} // namespace millrace::actors
