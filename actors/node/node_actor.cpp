// Answers the directory from memory, and the status from the providers' answers.
#include <millrace/actors/delivery.hpp>
#include <millrace/actors/node/node_actor.hpp>
#include <millrace/actors/open_answers.hpp>
#include <millrace/core/gathering.hpp>

#include <caf/typed_event_based_actor.hpp>

#include <memory>
#include <optional>

namespace millrace::actors {

namespace {

constexpr auto no_peer = "(no answer)";
constexpr auto provider_answer_max = std::chrono::seconds{5};

class node_actor_impl : public handed_over<node_actor::base> {
public:
  node_actor_impl(caf::actor_config& config, node_actor_deps deps)
    : handed_over(config), deps_(std::move(deps)) {}

  const char* name() const override { return "node"; }

  behavior_type make_behavior() override {
    set_default_handler(caf::drop);
    return {
      [this](const directory_request&) { return deps_.who_is_where; },
      [this](const node_status_request&) { return gather(); },
    };
  }

  void on_exit() override {
    answers_.give_up_all({errc::unavailable, "the node is shutting down"});
  }

private:
  using parts = gathering<std::optional<provider_status>>;

  caf::result<node_status> gather() {
    auto rp = make_response_promise<node_status>();
    auto& asked = deps_.providers;
    auto all =
      std::make_shared<parts>(asked.size() + 1, [this, answer = answers_.keep(rp)](auto answers) {
        answer(put_together(*answers));
      });
    for (std::size_t i = 0; i < asked.size(); ++i)
      request(asked[i].actor, provider_answer_max, provider_status_request{})
        .then(
          [all, i](provider_status& s) { all->arrived(i, std::move(s)); },
          [all, i](caf::error&) { all->arrived(i, std::nullopt); });
    // This ends the gathering if there are no providers.
    all->arrived(asked.size(), std::nullopt);
    return rp;
  }

  // A provider is also named if none of its actors has answered.
  node_status put_together(const std::vector<std::optional<provider_status>>& parts) const {
    auto status = deps_.own_state();
    for (std::size_t i = 0; i < deps_.providers.size(); ++i) {
      bool another = i == 0 || deps_.providers[i].target != deps_.providers[i - 1].target;
      if (another)
        status.providers.emplace_back().name = no_peer;
      auto& provider = status.providers.back();
      if (parts[i] && provider.name == no_peer)
        provider = *parts[i];
      else if (parts[i])
        provider.add(*parts[i]);
    }
    return status;
  }

  node_actor_deps deps_;
  open_answers answers_;
};

} // namespace

node_actor spawn_node_actor(caf::actor_system& system, node_actor_deps deps) {
  return system.spawn<node_actor_impl>(std::move(deps));
}

} // namespace millrace::actors
