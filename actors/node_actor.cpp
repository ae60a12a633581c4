// Directory from memory, status from the providers.
#include <millrace/actors/node_actor.hpp>

#include <caf/typed_event_based_actor.hpp>

#include <memory>

namespace millrace::actors {

namespace {

constexpr auto provider_answer_max = std::chrono::seconds{5};

class node_actor_impl : public node_actor::base {
public:
  node_actor_impl(caf::actor_config& config, node_actor_deps deps)
    : node_actor::base(config), deps_(std::move(deps)) {}

  const char* name() const override { return "node"; }

  behavior_type make_behavior() override {
    set_default_handler(caf::drop);
    return {
      [this](const directory_request&) { return deps_.who_is_where; },
      [this](const node_status_request&) { return gather(); },
    };
  }

private:
  caf::result<node_status> gather() {
    struct gathering {
      node_status status;
      std::size_t missing;
    };
    auto rp = make_response_promise<node_status>();
    auto g = std::make_shared<gathering>(gathering{deps_.own_state(), deps_.providers.size()});
    g->status.providers.resize(deps_.providers.size());
    auto one_more = [g, rp]() mutable {
      if (--g->missing == 0)
        rp.deliver(std::move(g->status));
    };
    if (deps_.providers.empty())
      rp.deliver(std::move(g->status));
    for (std::size_t i = 0; i < deps_.providers.size(); ++i)
      request(deps_.providers[i], provider_answer_max, provider_status_request{})
        .then(
          [g, i, one_more](provider_status& s) mutable {
            g->status.providers[i] = std::move(s);
            one_more();
          },
          [g, i, one_more](caf::error&) mutable {
            g->status.providers[i].name = "(no answer)";
            one_more();
          });
    return rp;
  }

  node_actor_deps deps_;
};

} // namespace

node_actor spawn_node_actor(caf::actor_system& system, node_actor_deps deps) {
  return system.spawn<node_actor_impl>(std::move(deps));
}

} // namespace millrace::actors
