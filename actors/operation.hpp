// One request that a provider works on: its deadline, its one answer, and the context that it
// shares with the other operations of its actor. Made by the actors of providers.
#pragma once

#include <millrace/actors/actor_home.hpp>
#include <millrace/actors/service.hpp>
#include <millrace/actors/staging/staging_lender.hpp>
#include <millrace/config/settings.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/transport/fabric.hpp>

#include <algorithm>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>

namespace millrace::actors {

/// The bounds of every operation of a provider, set by the configuration.
struct operation_limits : config::limits_settings {
  /// Larger payloads do not travel inside messages (`transport.eager_max`).
  std::uint32_t eager_bytes_max = transport::fabric_options{}.eager_bytes_max;
};

/// The objects that the operations of one provider's actor share. All but `home` is used in the
/// actor.
class operation_context : public actor_home {
public:
  operation_context(
    caf::actor_system& system, const caf::strong_actor_ptr& self, std::string provider,
    std::shared_ptr<transport::fabric> fabric, const operation_limits& bounds,
    std::shared_ptr<staging_lender> staging = nullptr)
    : actor_home(system, self), provider(std::move(provider)), fabric(std::move(fabric)),
      bounds(bounds), staging(std::move(staging)) {}

  /// Called when the actor ends. A context that holds a bucket or a store releases it here, since
  /// the bucket or store may keep completions that hold the context.
  void let_go() {}

  /// Moves bytes to or from a peer's memory. `done` runs in the actor, once: with the outcome, or
  /// with `deadline_exceeded` when the peer has not moved the bytes in time. A transfer that was
  /// given up like that may still go on; its `hold` keeps the memory. A long transfer moves in
  /// portions. Each has a time of its own, so a peer gains no longer wait by claiming a size.
  void move(transport::transfer t, completion<transport::transfer_report> done);
  /// Gives up the transfers whose time is over. Returns true if any are left to watch.
  bool give_up_stalled(time_point now);
  /// Forgets all transfers. Called when the actor ends.
  void forget_moves();
  /// `watch` is called when a transfer begins that must be watched. Called when the actor begins.
  void watch_moves_with(std::function<void()> watch) { watch_ = std::move(watch); }

  /// Asks for staging memory for one window; none if it needs none. The answer comes at once unless
  /// the party or the provider has its share.
  void ask_for_window(
    const staging_claim& claim, std::uint64_t size_bytes, completion<memory_block> granted);

  /// Returns the time of the actor system's clock, by which deadlines are.
  time_point now() const;

  const std::string provider;
  /// Expires when nothing of this actor's work is under way any more, in storage or elsewhere. Its
  /// node waits for that before it starts another actor.
  std::shared_ptr<void> in_use = nullptr;
  const std::shared_ptr<transport::fabric> fabric;
  const operation_limits bounds;
  const std::shared_ptr<staging_lender> staging; // may be null if windows need none
  /// Counts the ranges of bytes that loads of boxes keep.
  const std::shared_ptr<lent_places> box_ranges =
    std::make_shared<lent_places>(bounds.box_runs_max, "ranges of boxes (limits.box_runs_max)");

private:
  class moving_portions;

  struct move_under_way {
    time_point deadline;
    completion<transport::transfer_report> done; // null: it has ended
    std::list<std::shared_ptr<move_under_way>>::iterator at;
  };

  void move_at_once(
    transport::transfer t, std::uint64_t bytes, completion<transport::transfer_report> done);
  void end(move_under_way& one, result<transport::transfer_report> report);

  std::list<std::shared_ptr<move_under_way>> moves_;
  std::function<void()> watch_;
};

inline std::uint64_t us_between(time_point from, time_point to) {
  return static_cast<std::uint64_t>(
    std::chrono::duration_cast<std::chrono::microseconds>(to - from).count());
}

/// Returns the deadline of a request.
inline time_point deadline_of(
  std::uint32_t timeout_ms, const operation_limits& bounds, time_point arrived) {
  auto bounded = timeout_ms == 0
    ? bounds.request_timeout_ms
    : std::min<std::uint64_t>(timeout_ms, bounds.request_timeout_max_ms);
  return arrived + std::chrono::milliseconds{bounded};
}

/// Returns the error of a request that was given up at its deadline.
inline status late(const std::string& provider, const std::string& what) {
  return {
    errc::deadline_exceeded,
    "provider {} did not {} within the request's time (which is at most "
    "limits.request_timeout_max)",
    provider, what};
}

/// An operation under way. It answers exactly once. `arrived` is the time of the actor system's
/// clock, which tests control.
class operation {
public:
  virtual ~operation() = default;
  /// Starts the operation, which may end before this returns.
  virtual void begin() = 0;
  /// Answers with an error unless the operation has answered. Its resources are released as soon as
  /// nothing uses them.
  virtual void give_up(const status& why) = 0;
  virtual bool answered() const noexcept = 0;
  virtual time_point deadline() const noexcept = 0;
  /// Returns who asked.
  virtual const asker& from() const noexcept = 0;
};

/// Reports the end of an operation to its actor. Called in the actor, once.
template <class Receipt>
using answer = std::function<void(result<Receipt>)>;

/// Gives operations their deadline and lets them answer once.
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
  const asker& from() const noexcept final { return request_.from; }

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
