// The provider's actor: a table of contents; the operations themselves are in files of their own.
#include <millrace/actors/store_context.hpp>
#include <millrace/core/log.hpp>

#include <caf/actor_clock.hpp>
#include <caf/send.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <algorithm>
#include <deque>
#include <list>

namespace millrace::actors {

thread_local store_context* store_context::running = nullptr;

namespace {

using wide_interface = tensor_store_actor::extend<caf::reacts_to<step>>;

constexpr std::uint32_t layers_resolved_max = 65536;
constexpr std::uint32_t listed_max = 10'000;
constexpr auto tick_every = std::chrono::milliseconds{250};

class tensor_store : public wide_interface::base {
public:
  tensor_store(caf::actor_config& config, tensor_store_deps deps)
    : wide_interface::base(config),
      context_(std::make_shared<store_context>(
        system(), caf::actor_cast<caf::strong_actor_ptr>(this), std::move(deps))) {}

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
    for (auto* lane : {&stores_, &loads_}) {
      for (auto& op : lane->waiting)
        op->give_up(why);
      for (auto& op : std::list{lane->running})
        op->give_up(why);
    }
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

  // Operations of one kind: some run, some wait, more are refused.
  struct lane {
    std::list<std::shared_ptr<operation>> running;
    std::deque<std::shared_ptr<operation>> waiting;
  };

  storage::bucket& bucket() { return *context_->deps.bucket; }
  const tensor_store_limits& limits() const { return context_->deps.limits; }

  caf::result<store_receipt> store(store_request request) {
    store_context::entered inside{*context_};
    auto rp = make_response_promise<store_receipt>();
    auto done = [this, rp](result<store_receipt> outcome) mutable {
      finished(stores_, outcome, context_->counters.stores, context_->counters.stored_bytes);
      answer_with(rp, std::move(outcome));
    };
    start(
      stores_, limits().stores_max,
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
    start(
      loads_, limits().loads_max,
      make_load_operation(context_, std::move(request), system().clock().now(), std::move(done)));
    return rp;
  }

  caf::result<model_record> describe(describe_request request) {
    auto rp = make_response_promise<model_record>();
    bucket().open(
      std::move(request.model), request.version,
      context_->home<std::shared_ptr<storage::opened_model>>([rp](auto opened) mutable {
        answer_with(rp, opened.map([](auto& model) {
          auto record = model->record();
          record.digests.clear();
          return record;
        }));
      }));
    return rp;
  }

  caf::result<model_list> list(const list_request& request) {
    auto rp = make_response_promise<model_list>();
    bucket().list(
      request.prefix, request.after, std::min(request.count_max, listed_max),
      context_->home<std::vector<model_summary>>([rp](auto models) mutable {
        answer_with(rp, models.map([](auto& m) { return model_list{std::move(m)}; }));
      }));
    return rp;
  }

  caf::result<done_reply> erase(const erase_request& request) {
    auto rp = make_response_promise<done_reply>();
    bucket().erase(request.model, acknowledge(rp));
    return rp;
  }

  caf::result<done_reply> pin(const pin_request& request) {
    auto rp = make_response_promise<done_reply>();
    bucket().pin(request.model, request.pinned, acknowledge(rp));
    return rp;
  }

  caf::result<layer_list> resolve(resolve_request request) {
    if (request.ids.size() > layers_resolved_max)
      return caf::make_error(errc::invalid_argument, std::string{"too many layers in one request"});
    auto rp = make_response_promise<layer_list>();
    bucket().resolve(
      std::move(request.ids),
      context_->home<std::vector<described_layer>>([rp](auto layers) mutable {
        answer_with(rp, layers.map([](auto& l) { return layer_list{std::move(l)}; }));
      }));
    return rp;
  }

  // What has answered stays in its lane until the lane is looked at again.
  static std::uint64_t unanswered(const lane& l) {
    return static_cast<std::uint64_t>(
      std::count_if(l.running.begin(), l.running.end(), [](auto& op) { return !op->answered(); }));
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
    out.in_flight = unanswered(stores_) + unanswered(loads_);
    out.queued = stores_.waiting.size() + loads_.waiting.size();
    return out;
  }

  completion<void> acknowledge(caf::typed_response_promise<done_reply> rp) {
    return context_->home<void>([rp](result<void> outcome) mutable {
      answer_with(rp, outcome.map([] { return done_reply{}; }));
    });
  }

  template <class Receipt>
  static void answer_with(caf::typed_response_promise<Receipt>& rp, result<Receipt> outcome) {
    if (!outcome)
      rp.deliver(to_caf_error(outcome.error()));
    else
      rp.deliver(std::move(*outcome));
  }

  template <class Receipt>
  void finished(
    const lane& l, const result<Receipt>& outcome, std::uint64_t& number, std::uint64_t& bytes) {
    if (outcome) {
      ++number;
      bytes += outcome->size_bytes;
    } else {
      ++context_->counters.failures;
    }
    // Not from here: the caller may be walking the lane.
    if (!l.waiting.empty())
      send(this, step{[this] { reap_all(); }});
  }

  void start(lane& l, std::uint32_t running_max, std::shared_ptr<operation> op) {
    reap(l, running_max);
    if (l.running.size() >= running_max) {
      if (l.waiting.size() >= limits().queued_max)
        return op->give_up(
          {errc::busy,
           "provider " + context_->deps.name + " has " + std::to_string(l.waiting.size()) +
             " requests waiting (limits.queued_max); try again later"});
      l.waiting.push_back(std::move(op));
      return arm_tick();
    }
    run(l, std::move(op));
  }

  void run(lane& l, std::shared_ptr<operation> op) {
    try {
      op->begin();
    } catch (const std::exception& e) {
      op->give_up({errc::no_space, "provider " + context_->deps.name + ": " + e.what()});
    }
    // Small ones are done by now.
    if (op->answered())
      return;
    l.running.push_back(std::move(op));
    arm_tick();
  }

  // Forgets what has answered, gives up what is late, starts what waits.
  void reap(lane& l, std::uint32_t running_max) {
    l.running.remove_if([](auto& op) { return op->answered(); });
    while (!l.waiting.empty() && l.running.size() < running_max) {
      auto op = std::move(l.waiting.front());
      l.waiting.pop_front();
      if (!op->answered())
        run(l, std::move(op));
    }
  }

  void reap_all() {
    reap(stores_, limits().stores_max);
    reap(loads_, limits().loads_max);
  }

  void arm_tick() {
    if (std::exchange(ticking_, true))
      return;
    delayed_send(this, tick_every, step{[this] { tick(); }});
  }

  void tick() {
    ticking_ = false;
    status late{
      errc::deadline_exceeded,
      "provider " + context_->deps.name + " did not finish within the request's time"};
    auto now = system().clock().now();
    for (auto* l : {&stores_, &loads_}) {
      for (auto& op : l->running)
        if (!op->answered() && op->deadline() < now)
          op->give_up(late);
      for (auto& op : l->waiting)
        if (op->deadline() < now)
          op->give_up(late);
    }
    reap_all();
    if (
      !stores_.running.empty() || !loads_.running.empty() || !stores_.waiting.empty() ||
      !loads_.waiting.empty())
      arm_tick();
  }

  std::shared_ptr<store_context> context_;
  lane stores_, loads_;
  bool ticking_ = false;
};

} // namespace

tensor_store_actor spawn_tensor_store(caf::actor_system& system, tensor_store_deps deps) {
  return system.spawn<tensor_store>(std::move(deps));
}

} // namespace millrace::actors
