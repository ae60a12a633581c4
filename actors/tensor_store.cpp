// The provider's actor: a table of contents; the operations themselves are in files of their own.
#include <millrace/actors/open_answers.hpp>
#include <millrace/actors/operation_lane.hpp>
#include <millrace/actors/store_context.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/race_plant.hpp>

#include <caf/actor_clock.hpp>
#include <caf/send.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <algorithm>

namespace millrace::actors {

namespace {

using wide_interface = tensor_store_actor::extend<caf::reacts_to<step>>;

constexpr std::uint32_t layers_resolved_max = 65536;
constexpr std::uint32_t listed_max = 10'000;
constexpr auto tick_every = std::chrono::milliseconds{250};

class tensor_store : public handed_over<wide_interface::base> {
public:
  tensor_store(caf::actor_config& config, tensor_store_deps deps)
    : handed_over(config),
      context_(std::make_shared<store_context>(
        system(), caf::actor_cast<caf::strong_actor_ptr>(this), std::move(deps))),
      stores_(context_->provider, limits().stores_max, limits().queued_max, [this] { arm_tick(); }),
      loads_(context_->provider, limits().loads_max, limits().queued_max, [this] { arm_tick(); }) {}

  const char* name() const override { return "tensor_store"; }

  behavior_type make_behavior() override {
    set_default_handler(caf::drop);
    return {
      [this](store_request& r) { return store(std::move(r)); },
      [this](load_request& r) { return load(std::move(r)); },
      [this](describe_request& r) { return describe(std::move(r)); },
      [this](const list_request& r) { return list(r); },
      [this](const erase_request& r) { return erase(r); },
      [this](const pin_request& r) { return pin(r); },
      [this](resolve_request& r) { return resolve(std::move(r)); },
      [this](const provider_status_request&) { return status_now(); },
      [this](step& s) { work(s); },
    };
  }

  // Nobody waits for an answer that cannot come any more.
  void on_exit() override {
    store_context::entered inside{*context_};
    status why{errc::unavailable, "provider " + context_->deps.name + " is shutting down"};
    stores_.give_up_all(why);
    loads_.give_up_all(why);
    answers_.give_up_all(why);
    context_->let_go_of_bucket();
  }

private:
  // CAF ends an actor whose handler throws. Memory that runs out must end one operation, not the provider; an
  // operation cut short here ends at its deadline.
  void work(step& s) {
    store_context::entered inside{*context_};
    try {
      s.run();
    } catch (const std::exception& e) {
      log().error("provider {}: {}", context_->deps.name, e.what());
    }
  }

  storage::bucket& bucket() { return *context_->deps.bucket; }
  const tensor_store_limits& limits() const { return context_->deps.limits; }

  caf::result<store_receipt> store(store_request request) {
    store_context::entered inside{*context_};
    MILLRACE_PLANTED_RACE("tensor_store");
    auto rp = make_response_promise<store_receipt>();
    auto done = [this, rp](result<store_receipt> outcome) mutable {
      finished(stores_, outcome, context_->counters.stores, context_->counters.stored_bytes);
      answer_with(rp, std::move(outcome));
    };
    stores_.start(
      make_store_operation(context_, std::move(request), system().clock().now(), std::move(done)));
    return rp;
  }

  caf::result<load_receipt> load(load_request request) {
    store_context::entered inside{*context_};
    auto rp = make_response_promise<load_receipt>();
    auto done = [this, rp](result<load_receipt> outcome) mutable {
      finished(loads_, outcome, context_->counters.loads, context_->counters.loaded_bytes);
      answer_with(rp, std::move(outcome));
    };
    auto open = [this, name = request.model, version = request.version](auto opened) {
      bucket().open(name, version, std::move(opened));
    };
    loads_.start(make_load_operation(
      context_, std::move(request), std::move(open), system().clock().now(), std::move(done)));
    return rp;
  }

  caf::result<model_record> describe(describe_request request) {
    store_context::entered inside{*context_};
    auto rp = make_response_promise<model_record>();
    bucket().open(
      std::move(request.model), request.version,
      context_->home<std::shared_ptr<storage::opened_model>>(
        [answer = answers_.keep(rp)](auto opened) mutable {
          answer(opened.map([](auto& model) {
            auto record = model->record();
            record.digests.clear();
            return record;
          }));
        }));
    return rp;
  }

  caf::result<model_list> list(const list_request& request) {
    store_context::entered inside{*context_};
    auto rp = make_response_promise<model_list>();
    bucket().list(
      request.prefix, request.after, std::min(request.count_max, listed_max),
      context_->home<std::vector<model_summary>>([answer = answers_.keep(rp)](auto models) mutable {
        answer(models.map([](auto& m) { return model_list{std::move(m)}; }));
      }));
    return rp;
  }

  caf::result<done_reply> erase(const erase_request& request) {
    store_context::entered inside{*context_};
    auto rp = make_response_promise<done_reply>();
    bucket().erase(request.model, acknowledge(rp));
    return rp;
  }

  caf::result<done_reply> pin(const pin_request& request) {
    store_context::entered inside{*context_};
    auto rp = make_response_promise<done_reply>();
    bucket().pin(request.model, request.pinned, acknowledge(rp));
    return rp;
  }

  caf::result<layer_list> resolve(resolve_request request) {
    if (request.ids.size() > layers_resolved_max)
      return caf::make_error(errc::invalid_argument, std::string{"too many layers in one request"});
    store_context::entered inside{*context_};
    auto rp = make_response_promise<layer_list>();
    bucket().resolve(
      std::move(request.ids),
      context_->home<std::vector<described_layer>>(
        [answer = answers_.keep(rp)](auto layers) mutable {
          answer(layers.map([](auto& l) { return layer_list{std::move(l)}; }));
        }));
    return rp;
  }

  provider_status status_now() {
    auto out = context_->counters;
    auto stats = bucket().stats();
    out.name = context_->deps.name;
    out.kind = bucket().kind();
    out.group = context_->deps.group;
    out.durable = bucket().capabilities().durable;
    out.models = stats.models;
    out.capacity_bytes = stats.capacity_bytes;
    out.used_bytes = stats.used_bytes;
    out.evictions = stats.evictions;
    out.in_flight = stores_.unanswered() + loads_.unanswered();
    out.queued = stores_.waiting() + loads_.waiting();
    return out;
  }

  completion<void> acknowledge(caf::typed_response_promise<done_reply> rp) {
    return context_->home<void>([answer = answers_.keep(std::move(rp))](result<void> outcome) {
      answer(outcome.map([] { return done_reply{}; }));
    });
  }

  template <class Receipt>
  void finished(
    const operation_lane& l, const result<Receipt>& outcome, std::uint64_t& number,
    std::uint64_t& bytes) {
    if (outcome) {
      ++number;
      bytes += outcome->size_bytes;
    } else {
      ++context_->counters.failures;
    }
    // Not from here: the caller may be walking the lane.
    if (l.waiting() > 0)
      send(this, step{[this] { reap_all(); }});
  }

  void reap_all() {
    stores_.reap();
    loads_.reap();
  }

  void arm_tick() {
    if (std::exchange(ticking_, true))
      return;
    delayed_send(this, tick_every, step{[this] { tick(); }});
  }

  void tick() {
    ticking_ = false;
    auto now = system().clock().now();
    stores_.give_up_late(now);
    loads_.give_up_late(now);
    reap_all();
    if (!stores_.empty() || !loads_.empty())
      arm_tick();
  }

  std::shared_ptr<store_context> context_;
  operation_lane stores_, loads_;
  open_answers answers_; // of what the bucket was asked and no operation does
  bool ticking_ = false;
};

} // namespace

tensor_store_actor spawn_tensor_store(caf::actor_system& system, tensor_store_deps deps) {
  return system.spawn<tensor_store>(std::move(deps));
}

} // namespace millrace::actors
