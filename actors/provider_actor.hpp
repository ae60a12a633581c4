// The base of a provider's actors: it handles work that other threads finished, deadlines, and open
// answers.
#pragma once

#include <millrace/actors/delivery.hpp>
#include <millrace/actors/open_answers.hpp>
#include <millrace/actors/operation_lane.hpp>
#include <millrace/actors/provider_status.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/planted_defect.hpp>

#include <caf/actor_clock.hpp>
#include <caf/send.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <deque>
#include <memory>
#include <utility>

namespace millrace::actors {

/// An actor that answers `Interface` and whose operations share a `Context`. Its handlers are
/// members of the derived class, which `make_behavior` lists with `handlers`.
///
/// Every request is answered: at its deadline, which is checked four times a second, or when the
/// actor ends.
template <class Interface, class Context = operation_context>
class provider_actor
  : public handed_over<typename Interface::template extend<caf::reacts_to<own_work>>::base> {
  using typed_base =
    handed_over<typename Interface::template extend<caf::reacts_to<own_work>>::base>;

public:
  using typename typed_base::behavior_type;

  /// Makes the context from this actor and `args`.
  template <class... Args>
  explicit provider_actor(caf::actor_config& config, Args&&... args)
    : typed_base(config), context_(std::make_shared<Context>(
                            this->system(), caf::actor_cast<caf::strong_actor_ptr>(this),
                            std::forward<Args>(args)...)) {
    context_->watch_moves_with([this] { watch(); });
  }

  void on_exit() final {
    actor_home::entered inside{*context_};
    status why{errc::unavailable, "provider {} is shutting down", context_->provider};
    for (auto& lane : lanes_)
      lane.give_up_all(why);
    give_up_all(why);
    answers_.give_up_all(why);
    context_->forget_moves();
    context_->let_go();
  }

protected:
  /// Gives up the requests whose deadline is before `now`. Returns true if any are left to watch.
  /// The base watches operations in lanes and answers that storage owes.
  virtual bool give_up_late(time_point) { return false; }
  /// Gives up all requests when the actor ends.
  virtual void give_up_all(const status&) {}

  template <class Self, class... Results, class... Requests>
  behavior_type handlers(Results (Self::*... handle)(Requests)) {
    this->set_default_handler(caf::drop);
    return {
      [this, handle](Requests request) -> Results {
        actor_home::entered inside{*context_};
        return (static_cast<Self*>(this)->*handle)(request);
      }...,
      [this](own_work& s) { work(s); }};
  }

  time_point now() { return this->system().clock().now(); }

  /// Makes sure that deadlines are checked.
  void watch() {
    if (!std::exchange(watching_, true) && !is_planted(defect::deadline_not_armed))
      this->delayed_send(this, look_every, own_work{[this] { look(); }});
  }

  /// Makes a lane for operations of one kind. It lives as long as the actor.
  operation_lane& add_lane(std::uint32_t running_max, std::uint32_t queued_max) {
    return lanes_.emplace_back(context_->provider, running_max, queued_max, [this] { watch(); });
  }

  /// Answers with the receipt of an operation, which `make(arrived, done)` makes. `count` gets its
  /// outcome.
  template <class Receipt, class Make, class Count>
  caf::result<Receipt> operate(operation_lane& lane, Make make, Count count) {
    auto rp = this->template make_response_promise<Receipt>();
    lane.start(make(now(), [this, rp, &lane, count](result<Receipt> outcome) mutable {
      count(outcome);
      answer_with(rp, std::move(outcome));
      // Not called from here, since the caller may be walking the lane.
      if (lane.waiting() > 0)
        this->send(this, own_work{[&lane] { lane.reap(); }});
    }));
    return rp;
  }

  /// Answers with an outcome of storage. `ask` gets the completion that it must run; `reply_of`
  /// makes the reply from the value.
  template <class Reply, class T, class Ask, class MakeReply>
  caf::result<Reply> answer_from(Ask ask, MakeReply reply_of) {
    auto rp = this->template make_response_promise<Reply>();
    ask(
      context_->template home<T>([answer = answers_.keep(rp), reply_of](result<T> outcome) mutable {
        answer(outcome.map(reply_of));
      }));
    return rp;
  }

  /// Returns the part of the status that all actors of a provider have.
  provider_status common_status() const {
    provider_status s;
    s.name = context_->provider;
    for (auto& lane : lanes_) {
      s.in_flight += lane.unanswered();
      s.queued += lane.waiting();
    }
    return s;
  }

  const std::shared_ptr<Context> context_;

private:
  static constexpr auto look_every = std::chrono::milliseconds{250};

  // CAF ends an actor whose handler throws. But if memory runs out, one operation must end, not the
  // provider. An operation that is cut short here ends at its deadline.
  void work(own_work& s) {
    actor_home::entered inside{*context_};
    try {
      s.run();
    } catch (const std::exception& e) {
      log().error("provider {}: {}", context_->provider, e.what());
    }
  }

  void look() {
    watching_ = false;
    bool more = give_up_late(now());
    more |= context_->give_up_stalled(now());
    for (auto& lane : lanes_) {
      lane.give_up_late(now());
      lane.reap();
      more |= !lane.empty();
    }
    if (more)
      watch();
  }

  std::deque<operation_lane> lanes_;
  open_answers answers_;
  bool watching_ = false;
};

} // namespace millrace::actors
