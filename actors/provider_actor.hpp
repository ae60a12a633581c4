// The base of a provider's actors: it handles work that other threads finished, deadlines, open
// answers, the end of actors that it depends on, and its own failure.
#pragma once

#include <millrace/actors/delivery.hpp>
#include <millrace/actors/open_answers.hpp>
#include <millrace/actors/operation_lane.hpp>
#include <millrace/actors/provider_status.hpp>
#include <millrace/actors/several.hpp>
#include <millrace/actors/supervision.hpp>
#include <millrace/core/gathering.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/planted_defect.hpp>

#include <caf/actor_clock.hpp>
#include <caf/send.hpp>
#include <caf/system_messages.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <fmt/core.h>

#include <deque>
#include <memory>
#include <new>
#include <set>
#include <utility>
#include <vector>

namespace millrace::actors {

/// An actor that answers `Interface` and whose operations share a `Context`. Its handlers are
/// members of the derived class, which `make_behavior` lists with `handlers`.
///
/// Every request is answered: at its deadline, which is checked four times a second, or when the
/// actor ends.
///
/// A handler that throws ends the actor, since nothing is known of its state then. Its requests are
/// answered with the reason, its monitors get the reason, and its node starts another one. If
/// memory runs out in work that other threads brought, only that operation ends.
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
    this->set_down_handler([this](caf::down_msg& down) {
      handle(typeid(down), [&] {
        watched_.erase(down.source);
        ended(down.source, reason_of(down));
      });
    });
    this->set_exception_handler([this](std::exception_ptr& thrown) {
      return to_caf_error(failure_ = ending_of(failure_, who(), thrown));
    });
  }

  void on_exit() final {
    {
      actor_home::entered inside{*context_};
      auto why = failure_.ok()
        ? status{errc::unavailable, "provider {} is shutting down", context_->provider}
        : status{
            errc::unavailable, "provider {} starts anew, ask again: {}", context_->provider,
            failure_.detail()};
      for (auto& lane : lanes_)
        lane.give_up_all(why);
      give_up_all(why);
      answers_.give_up_all(why);
      refuse_unread(*this, why);
      context_->forget_moves();
      context_->let_go();
    }
    // The node waits for the end of the context before it starts another actor. Operations hold it.
    lanes_.clear();
    context_.reset();
  }

protected:
  /// Gives up the requests whose deadline is before `now`. Returns true if any are left to watch.
  /// The base watches operations in lanes and answers that storage owes.
  virtual bool give_up_late(time_point) { return false; }
  /// Gives up all requests when the actor ends.
  virtual void give_up_all(const status&) {}
  /// Called when an actor has ended that this one watches.
  virtual void ended(const caf::actor_addr&, const status&) {}

  /// Watches the actor that sent the request which is being handled: a client's, or the one that
  /// asks for a connection's peer. It ends with the client or the connection, after all its
  /// requests have come. Null: nothing waits for an answer. Call it before a promise is made.
  caf::actor_addr watch_asker() {
    auto who = caf::actor_cast<caf::actor_addr>(this->current_sender());
    if (who)
      watch(who);
    return who;
  }
  void watch(const caf::actor_addr& actor) {
    if (watched_.insert(actor).second)
      this->monitor(actor);
  }

  template <class... Results, class... Owners, class... Requests>
  behavior_type handlers(Results (Owners::*... handlers)(Requests)) {
    this->set_default_handler(caf::drop);
    return {
      [this, handlers](Requests request) -> Results {
        return handle(
          typeid(Requests), [&] { return (static_cast<Owners*>(this)->*handlers)(request); });
      }...,
      [this](own_work& s) { handle(typeid(own_work), [&] { work(s); }); }};
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
    start_in<Receipt>(lane, std::move(make), [rp, count](result<Receipt> outcome) mutable {
      count(outcome);
      answer_with(rp, std::move(outcome));
    });
    return rp;
  }

  /// Answers with the outcomes of several operations when all have ended. `maker_of(i)` returns
  /// what makes number i.
  template <class Receipt, class MakerOf, class Count>
  caf::result<outcomes_of<Receipt>> operate_many(
    operation_lane& lane, std::size_t size, MakerOf maker_of, Count count) {
    using Reply = outcomes_of<Receipt>;
    using Outcome = outcome_of<Receipt>;
    auto rp = this->template make_response_promise<Reply>();
    auto done = [rp](result<std::vector<Outcome>> all) mutable {
      answer_with(rp, all.map([](auto& items) { return Reply{std::move(items)}; }));
    };
    if (size == 0) {
      done(std::vector<Outcome>{});
      return rp;
    }
    auto all = std::make_shared<gathering<Outcome>>(size, std::move(done));
    for (std::size_t i = 0; i < size; ++i)
      start_in<Receipt>(lane, maker_of(i), [all, i, count](result<Receipt> outcome) mutable {
        count(outcome);
        all->arrived(i, Outcome::from(std::move(outcome)));
      });
    return rp;
  }

  /// Answers with an outcome of storage, which has the request's time, or that of one that names
  /// none. `ask` gets the completion that it must run; `reply_of` makes the reply from the value.
  template <class Reply, class T, class Ask, class MakeReply>
  caf::result<Reply> answer_from(Ask ask, MakeReply reply_of, std::uint32_t timeout_ms = 0) {
    auto rp = this->template make_response_promise<Reply>();
    auto answer = answers_.keep(rp, deadline_of(timeout_ms, context_->bounds, now()));
    ask(context_->template home<T>(
      [answer, reply_of](result<T> outcome) mutable { answer(outcome.map(reply_of)); }));
    if (!answers_.empty())
      watch();
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

  std::shared_ptr<Context> context_; // null: the actor has ended

private:
  static constexpr auto look_every = std::chrono::milliseconds{250};

  template <class Receipt, class Make, class Done>
  void start_in(operation_lane& lane, Make make, Done done) {
    lane.start(make(now(), [this, &lane, done](result<Receipt> outcome) mutable {
      done(std::move(outcome));
      // Not called from here, since the caller may be walking the lane.
      if (lane.waiting() > 0)
        this->send(this, own_work{[&lane] { lane.reap(); }});
    }));
  }

  template <class F>
  auto handle(const std::type_info& message, F f) {
    actor_home::entered inside{*context_};
    return run_handler(*this, message, std::move(f), [&](const std::exception_ptr& thrown) {
      return failure_ = failure_of(who(), name_of(message), thrown);
    });
  }

  std::string who() const {
    return fmt::format("provider {}: {}", context_->provider, this->name());
  }

  // An operation that is cut short here ends at its deadline.
  void work(own_work& s) {
    try {
      s.run();
    } catch (const std::bad_alloc& e) {
      log().error("provider {}: {}", context_->provider, e.what());
    }
  }

  void look() {
    watching_ = false;
    bool more = give_up_late(now());
    more |= context_->give_up_stalled(now());
    answers_.give_up_late(now(), late(context_->provider, "hear from its storage"));
    more |= !answers_.empty();
    for (auto& lane : lanes_) {
      lane.give_up_late(now());
      lane.reap();
      more |= !lane.empty();
    }
    if (more || is_planted(defect::tick_never_rests))
      watch();
  }

  std::deque<operation_lane> lanes_;
  open_answers answers_;
  std::set<caf::actor_addr> watched_;
  status failure_; // the failure of this actor
  bool watching_ = false;
};

} // namespace millrace::actors
