// Directory from memory, status from the providers.
#include <millrace/actors/delivery.hpp>
#include <millrace/actors/node_actor.hpp>
#include <millrace/actors/open_answers.hpp>

#include <caf/typed_event_based_actor.hpp>

#include <memory>

namespace millrace::actors {

namespace {

constexpr auto nobody = "(no answer)";
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
  // A status to be filled by everybody it names.
  struct gathering {
    node_status status;
    std::size_t missing = 0;
    std::function<void(result<node_status>)> answer;

    void one_less() {
      if (--missing == 0)
        answer(std::move(status));
    }
  };

  caf::result<node_status> gather() {
    auto g = std::make_shared<gathering>();
    g->status = deps_.own_state();
    g->status.providers.resize(deps_.providers.size());
    for (auto& p : g->status.providers)
      p.name = nobody;
    auto rp = make_response_promise<node_status>();
    g->answer = answers_.keep(rp);
    g->missing = 1;
    for (std::size_t i = 0; i < deps_.providers.size(); ++i) {
      auto& p = deps_.providers[i];
      if (p.store)
        ask(g, p.store, [g, i](provider_status& s) { add_store(g->status.providers[i], s); });
      if (p.checkpoints)
        ask(g, p.checkpoints, [g, i](provider_status& s) {
          add_checkpoints(g->status.providers[i], s);
        });
    }
    g->one_less();
    return rp;
  }

  template <class Handle, class F>
  void ask(const std::shared_ptr<gathering>& g, const Handle& whom, F take) {
    ++g->missing;
    request(whom, provider_answer_max, provider_status_request{})
      .then(
        [g, take](provider_status& s) {
          take(s);
          g->one_less();
        },
        [g](caf::error&) { g->one_less(); });
  }

  // The two parts of a provider answer in any order.
  static void add_store(provider_status& all, provider_status& part) {
    std::swap(all, part);
    if (part.checkpoints)
      add_checkpoints(all, part);
  }

  static void add_checkpoints(provider_status& all, const provider_status& part) {
    if (all.name == nobody) {
      all = part;
      return;
    }
    all.checkpoints = true;
    all.used_bytes += part.used_bytes;
    all.registered = part.registered;
    all.saves_in_flight = part.saves_in_flight;
    all.saves_queued = part.saves_queued;
    all.saves = part.saves;
    all.saves_failed = part.saves_failed;
    all.saved_bytes = part.saved_bytes;
    all.restores = part.restores;
    all.restored_bytes = part.restored_bytes;
    all.flushes = part.flushes;
    all.flushed = part.flushed;
    all.in_flight += part.in_flight;
    all.queued += part.queued;
  }

  node_actor_deps deps_;
  open_answers answers_;
};

} // namespace

node_actor spawn_node_actor(caf::actor_system& system, node_actor_deps deps) {
  return system.spawn<node_actor_impl>(std::move(deps));
}

} // namespace millrace::actors
