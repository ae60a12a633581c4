// Answers the directory from memory, and the status from the providers' answers. Watches the actors
// of providers, and those that serve all providers.
#include <millrace/actors/delivery.hpp>
#include <millrace/actors/node/node_actor.hpp>
#include <millrace/actors/open_answers.hpp>
#include <millrace/actors/supervision.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/gathering.hpp>
#include <millrace/core/log.hpp>

#include <caf/actor_clock.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>

namespace millrace::actors {

namespace {

constexpr auto no_peer = "(no answer)";
constexpr auto provider_answer_max = std::chrono::seconds{5};
constexpr auto look_every = std::chrono::milliseconds{20};
constexpr auto work_again_after = std::chrono::seconds{1};

// The node's actor is the root of the supervision. It keeps counts and pending restarts only, which
// a handler that throws leaves as they were, so it goes on.
class node_actor_impl : public handed_over<node_actor::extend<caf::reacts_to<own_work>>::base> {
  template <class Message, class F>
  auto guarded(const Message& message, F f) {
    return survive_handler(*this, typeid(message), f, [] { return "the node's actor"; });
  }

public:
  node_actor_impl(caf::actor_config& config, node_actor_deps deps)
    : handed_over(config), deps_(std::move(deps)) {}

  const char* name() const override { return "node"; }

  behavior_type make_behavior() override {
    set_default_handler(caf::drop);
    set_down_handler([this](const caf::down_msg& down) {
      // No other actor restarts what has ended.
      if (!guarded(down, [&] { ended(down); }))
        delayed_send(this, look_every, own_work{[this, down] { ended(down); }});
    });
    for (auto& one : deps_.actors)
      monitor(one.running.actor.address());
    part_histories_.resize(deps_.parts.size());
    for (auto& part : deps_.parts)
      watch(part);
    return {
      [this](const directory_request& request) -> caf::result<directory> {
        return guarded(request, [&]() -> caf::result<directory> { return deps_.who_is_where; });
      },
      [this](const node_status_request& request) -> caf::result<node_status> {
        return guarded(request, [&] { return gather(); });
      },
      [this](own_work& s) {
        auto again = s; // no other actor does it
        if (!guarded(s, [&] { s.run(); }))
          delayed_send(this, work_again_after, std::move(again));
      },
    };
  }

  void on_exit() override {
    answers_.give_up_all({errc::unavailable, "the node is shutting down"});
    deps_ = {}; // a client may keep the handle, and must not keep what the providers have open
  }

private:
  using parts = gathering<std::optional<provider_status>>;

  // What has become of the actors of one provider, or of a part of the node.
  struct history {
    std::uint64_t failures = 0;
    std::string last_failure;
    std::deque<time_point> restarts; // within the last period
    std::string down;
  };

  time_point now() { return system().clock().now(); }

  void ended(const caf::down_msg& down) {
    auto why = reason_of(down);
    if (why.ok())
      return;
    for (std::size_t i = 0; i < deps_.actors.size(); ++i) {
      auto& one = deps_.actors[i];
      if (!one.running.actor || one.running.actor.address() != down.source)
        continue;
      count_failure(histories_[one.target], why);
      // Its last work ends with the handle, unless storage or a peer still has some of it.
      one.running.actor = nullptr;
      auto deadline = now() + deps_.restarts.work_max;
      return send(this, own_work{[this, i, deadline] { restart(i, deadline); }});
    }
    for (std::size_t i = 0; i < deps_.parts.size(); ++i)
      if (deps_.parts[i].running == down.source) {
        count_failure(part_histories_[i], why);
        deps_.parts[i].running = nullptr;
        return send(this, own_work{[this, i] { restart_part(i); }});
      }
  }

  static void count_failure(history& known, const status& why) {
    known.last_failure = why.detail();
    ++known.failures; // last, since the end is handled again if this throws
  }

  // Restarts are work of their own, which is done again if it throws. So they look first whether
  // the actor runs.
  void restart(std::size_t number, time_point deadline) {
    auto& one = deps_.actors[number];
    if (one.running.actor)
      return;
    auto& known = histories_[one.target];
    if (!one.start || fails_too_often(known))
      return take_down(one.target, known, too_often(known));
    if (!one.running.in_use.expired() && now() < deadline)
      return delayed_send(
        this, look_every, own_work{[this, number, deadline] { restart(number, deadline); }});
    if (!one.running.in_use.expired())
      return take_down(one.target, known, "what its actor had begun does not end");
    known.restarts.push_back(now());
    try {
      one.running = one.start();
    } catch (...) {
      return take_down(one.target, known, what_of(std::current_exception()));
    }
    monitor(one.running.actor.address());
    log().warn(
      "an actor was started anew provider={} times={} why=\"{}\"", one.target,
      known.restarts.size(), known.last_failure);
  }

  void restart_part(std::size_t number) {
    auto& part = deps_.parts[number];
    if (part.running)
      return;
    auto& known = part_histories_[number];
    if (fails_too_often(known))
      return take_down(part, known, too_often(known));
    known.restarts.push_back(now());
    try {
      part.running = part.start();
    } catch (...) {
      return take_down(part, known, what_of(std::current_exception()));
    }
    watch(part);
    log().warn(
      "an actor was started anew part=\"{}\" times={} why=\"{}\"", part.name, known.restarts.size(),
      known.last_failure);
  }

  // The engine keeps its actors until the node ends. This one may begin after that.
  void watch(const supervised_part& part) {
    if (auto alive = caf::actor_cast<caf::actor>(part.running))
      monitor(alive);
  }

  bool fails_too_often(history& known) {
    auto& restarts = known.restarts;
    while (!restarts.empty() && restarts.front() + deps_.restarts.period < now())
      restarts.pop_front();
    return restarts.size() >= deps_.restarts.restarts_max;
  }

  std::string too_often(const history& known) const {
    return fmt::format(
      "its actors were started anew {} times within {} s (node.restarts_max)",
      known.restarts.size(), deps_.restarts.period.count() / 1000);
  }

  static std::string down_text(const history& known, const std::string& why) {
    return fmt::format("{}; {}; start the service again", known.last_failure, why);
  }

  void take_down(const std::string& target, history& known, const std::string& why) {
    known.down = down_text(known, why);
    log().error("a provider is down provider={} why=\"{}\"", target, known.down);
    if (deps_.take_down)
      deps_.take_down(target, {errc::unavailable, "provider {} is down: {}", target, known.down});
  }

  void take_down(const supervised_part& part, history& known, const std::string& why) {
    known.down = down_text(known, why);
    log().error("a part of the node is down part=\"{}\" why=\"{}\"", part.name, known.down);
    part.take_down({errc::unavailable, "{} is down: {}", part.name, known.down});
  }

  caf::result<node_status> gather() {
    auto rp = make_response_promise<node_status>();
    auto& asked = deps_.actors;
    auto all =
      std::make_shared<parts>(asked.size() + 1, [this, answer = answers_.keep(rp)](auto answers) {
        answer(put_together(*answers));
      });
    for (std::size_t i = 0; i < asked.size(); ++i)
      if (asked[i].running.actor)
        request(asked[i].running.actor, provider_answer_max, provider_status_request{})
          .then(
            [all, i](provider_status& s) { all->arrived(i, std::move(s)); },
            [all, i](caf::error&) { all->arrived(i, std::nullopt); });
      else
        all->arrived(i, std::nullopt);
    // This ends the gathering if there are no providers.
    all->arrived(asked.size(), std::nullopt);
    return rp;
  }

  // A provider is also named if none of its actors has answered.
  node_status put_together(const std::vector<std::optional<provider_status>>& parts) const {
    auto status = deps_.own_state();
    for (std::size_t i = 0; i < deps_.actors.size(); ++i) {
      auto is_of = [&](std::size_t other) {
        return deps_.actors[other].target == deps_.actors[i].target;
      };
      if (i == 0 || !is_of(i - 1))
        status.providers.emplace_back().name = no_peer;
      auto& provider = status.providers.back();
      if (parts[i] && provider.name == no_peer)
        provider = *parts[i];
      else if (parts[i])
        provider.add(*parts[i]);
      if (i + 1 == deps_.actors.size() || !is_of(i + 1))
        add_failures(provider, deps_.actors[i].target);
    }
    for (std::size_t i = 0; i < deps_.parts.size(); ++i)
      add_failures(status, deps_.parts[i].name, part_histories_[i]);
    return status;
  }

  void add_failures(provider_status& provider, const std::string& target) const {
    auto known = histories_.find(target);
    if (known == histories_.end())
      return;
    provider.actor_failures += known->second.failures;
    provider.last_failure = known->second.last_failure;
    provider.down = known->second.down;
    auto starts = std::ranges::any_of(
      deps_.actors, [&](auto& one) { return one.target == target && !one.running.actor; });
    if (provider.down.empty() && starts)
      provider.down = "it starts anew: " + known->second.last_failure;
    if (!provider.down.empty())
      provider.name = target;
  }

  static void add_failures(node_status& out, const std::string& part, const history& known) {
    out.actor_failures += known.failures;
    if (!known.last_failure.empty())
      out.last_failure = known.last_failure;
    if (!known.down.empty())
      out.down =
        fmt::format("{}{} is down: {}", out.down.empty() ? "" : out.down + "; ", part, known.down);
  }

  node_actor_deps deps_;
  std::map<std::string, history> histories_; // by provider
  std::vector<history> part_histories_;      // of `deps_.parts`
  open_answers answers_;
};

} // namespace

node_actor spawn_node_actor(caf::actor_system& system, node_actor_deps deps) {
  return system.spawn<node_actor_impl>(std::move(deps));
}

} // namespace millrace::actors
