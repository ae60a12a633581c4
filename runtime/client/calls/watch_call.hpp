// The steps of every call that waits for something newer: park, look, wait, look again.
// Internal, used by `watches`; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/parked_watches.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace millrace::runtime {

/// Waits at one provider. It looks once after the watch is parked, and then whenever it is woken,
/// so what comes between is not missed. Used in the client's actor only.
template <class Reply>
class watch_at_provider : public std::enable_shared_from_this<watch_at_provider<Reply>> {
public:
  /// Looks for what is newer; empty: there is nothing yet.
  using look = std::function<void(completion<std::optional<Reply>> found)>;

  watch_at_provider(
    parked_watches& at, actors::watch_request what, time_point deadline, look look_for,
    completion<Reply> done)
    : at_(at), what_(std::move(what)), deadline_(deadline), look_for_(std::move(look_for)),
      done_(std::move(done)) {}

  void begin() {
    is_waiting_ = true;
    auto self = this->shared_from_this(); // a watch that fails at once may be dropped meanwhile
    number_ = at_.park(what_, deadline_, [self](result<watch_step> step) { self->on_step(step); });
  }

  /// Withdraws the watch. `done` is not run any more.
  void stop() {
    done_ = nullptr;
    if (std::exchange(is_waiting_, false))
      at_.withdraw(number_);
  }

  /// True if the provider has taken the watch.
  bool was_parked() const noexcept { return was_parked_; }

private:
  void on_step(const result<watch_step>& step) {
    if (!done_)
      return;
    is_waiting_ = step && *step == watch_step::parked;
    was_parked_ |= step.has_value();
    if (!step)
      return end(fail(step.error()));
    if (!std::exchange(is_looking_, true))
      at_.in_turn([self = this->shared_from_this()](std::function<void()> over) {
        if (!self->done_)
          return over();
        self->look_for_([self, over = std::move(over)](result<std::optional<Reply>> found) {
          self->on_look(std::move(found));
          over();
        });
      });
  }

  void on_look(result<std::optional<Reply>> found) {
    is_looking_ = false;
    if (!done_)
      return;
    if (!found)
      end(fail(found.error()));
    else if (*found)
      end(std::move(**found));
    else if (!is_waiting_) // woken, and it was gone again or came during the look
      begin();
  }

  void end(result<Reply> outcome) {
    auto done = std::exchange(done_, nullptr);
    stop();
    done(std::move(outcome));
  }

  parked_watches& at_;
  const actors::watch_request what_;
  const time_point deadline_;
  const look look_for_;
  completion<Reply> done_; // null: it has ended
  std::uint64_t number_ = 0;
  bool is_waiting_ = false; // parked, or about to be
  bool was_parked_ = false;
  bool is_looking_ = false;
};

/// One call of the client. It ends once: with what is newer, with an error, at its deadline, or
/// when the program has dropped the client.
template <class Reply>
class watch_call : public std::enable_shared_from_this<watch_call<Reply>> {
public:
  watch_call(
    std::shared_ptr<client_core> core, std::string group, std::string model,
    std::chrono::milliseconds timeout)
    : core_(core->shared_from_this()), group_(std::move(group)), model_(std::move(model)),
      deadline_(core_->deadline_after(timeout)), done_(core_->template make_promise<Reply>()) {}
  virtual ~watch_call() = default;

  future<Reply> begin() {
    auto self = this->shared_from_this();
    // The caller does not have the future yet, so it cannot have cancelled.
    static_cast<void>(done_.on_cancel([weak = std::weak_ptr{self}] {
      if (auto call = weak.lock())
        call->core_->run([call] { call->end(fail(errc::cancelled, "cancelled by the caller")); });
    }));
    closing_ = core_->when_closed([weak = std::weak_ptr{self}] {
      if (auto call = weak.lock())
        call->end(fail(errc::cancelled, "the client was closed"));
    });
    core_->run([self] {
      self->end_at_deadline();
      self->start();
    });
    return done_.get_future();
  }

protected:
  // Called in the client's actor:
  virtual void start() = 0;
  virtual void stop() = 0;

  void end(result<Reply> outcome) {
    if (std::exchange(has_ended_, true))
      return;
    core_->runs_on()->loop()->cancel_timer(timer_);
    core_->forget_closing(closing_);
    stop();
    done_.set(std::move(outcome));
  }
  bool has_ended() const noexcept { return has_ended_; }

  const std::shared_ptr<client_core> core_;
  const std::string group_, model_;
  const time_point deadline_;

private:
  // A timer of the loop can be cancelled: deadlines of watches may be far, and their ends many.
  void end_at_deadline() {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - steady_clock::now());
    timer_ = core_->runs_on()->loop()->run_after(
      static_cast<std::uint32_t>(std::max<std::int64_t>(left.count(), 0)),
      [weak = this->weak_from_this()] {
        if (auto call = weak.lock())
          call->core_->run([call] {
            call->end(fail(
              errc::deadline_exceeded, "nothing newer of {} came within the operation's time",
              call->model_));
          });
      });
  }

  const promise<Reply> done_;
  std::uint64_t timer_ = 0, closing_ = 0;
  bool has_ended_ = false;
};

} // namespace millrace::runtime
