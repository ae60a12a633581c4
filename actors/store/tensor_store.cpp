// Lists the messages of the provider's actor. The operations are in files of their own.
#include <millrace/actors/provider_actor.hpp>
#include <millrace/actors/store/store_context.hpp>
#include <millrace/core/race_plant.hpp>

#include <algorithm>

namespace millrace::actors {

namespace {

constexpr std::uint32_t layers_resolved_max = 65536;
constexpr std::uint32_t listed_max = 10'000;

class tensor_store : public provider_actor<tensor_store_actor, store_context> {
public:
  using provider_actor::provider_actor;

  const char* name() const override { return "tensor_store"; }

  behavior_type make_behavior() override {
    using self = tensor_store;
    return handlers(
      &self::store, &self::load, &self::describe, &self::list, &self::erase, &self::pin,
      &self::resolve, &self::report);
  }

private:
  storage::bucket& bucket() { return *context_->deps.bucket; }
  const tensor_store_limits& limits() const { return context_->deps.limits; }

  caf::result<store_receipt> store(store_request& request) {
    MILLRACE_PLANTED_RACE("tensor_store");
    return operate<store_receipt>(
      stores_,
      [&](auto arrived, auto done) {
        return make_store_operation(context_, std::move(request), arrived, std::move(done));
      },
      [this](auto& outcome) { count(outcome, counted_.stores, counted_.stored_bytes); });
  }

  caf::result<load_receipt> load(load_request& request) {
    auto open = [this, name = request.model, version = request.version](auto opened) {
      bucket().open(name, version, std::move(opened));
    };
    return operate<load_receipt>(
      loads_,
      [&](auto arrived, auto done) {
        return make_load_operation(
          context_, std::move(request), std::move(open), arrived, std::move(done));
      },
      [this](auto& outcome) { count(outcome, counted_.loads, counted_.loaded_bytes); });
  }

  template <class Receipt>
  void count(const result<Receipt>& outcome, std::uint64_t& number, std::uint64_t& bytes) {
    ++(outcome ? number : counted_.failures);
    if (outcome)
      bytes += outcome->size_bytes;
  }

  caf::result<model_record> describe(describe_request& request) {
    return answer_from<model_record, std::shared_ptr<storage::opened_model>>(
      [&](auto done) { bucket().open(std::move(request.model), request.version, std::move(done)); },
      [](auto& model) {
        auto record = model->record();
        record.digests.clear();
        return record;
      });
  }

  caf::result<model_list> list(const list_request& request) {
    return answer_from<model_list, std::vector<model_summary>>(
      [&](auto done) {
        bucket().list(
          request.prefix, request.after, std::min(request.count_max, listed_max), std::move(done));
      },
      [](auto& models) { return model_list{std::move(models)}; });
  }

  caf::result<done_reply> erase(const erase_request& request) {
    return answer_from<done_reply, void>(
      [&](auto done) { bucket().erase(request.model, std::move(done)); },
      [] { return done_reply{}; });
  }

  caf::result<done_reply> pin(const pin_request& request) {
    return answer_from<done_reply, void>(
      [&](auto done) { bucket().pin(request.model, request.pinned, std::move(done)); },
      [] { return done_reply{}; });
  }

  caf::result<layer_list> resolve(resolve_request& request) {
    if (request.ids.size() > layers_resolved_max)
      return caf::make_error(errc::invalid_argument, std::string{"too many layers in one request"});
    return answer_from<layer_list, std::vector<described_layer>>(
      [&](auto done) { bucket().resolve(std::move(request.ids), std::move(done)); },
      [](auto& layers) { return layer_list{std::move(layers)}; });
  }

  provider_status report(const provider_status_request&) {
    auto out = common_status();
    auto stats = bucket().stats();
    out.kind = bucket().kind();
    out.group = context_->deps.group;
    out.durable = bucket().capabilities().durable;
    out.capacity_bytes = stats.capacity_bytes;
    out.used_bytes = stats.used_bytes;
    out.store = counted_;
    out.store.models = stats.models;
    out.store.evictions = stats.evictions;
    return out;
  }

  operation_lane& stores_ = add_lane(limits().stores_max, limits().queued_max);
  operation_lane& loads_ = add_lane(limits().loads_max, limits().queued_max);
  store_status counted_; // only the counters that this actor counts are used
};

} // namespace

tensor_store_actor spawn_tensor_store(caf::actor_system& system, tensor_store_deps deps) {
  return system.spawn<tensor_store>(std::move(deps));
}

} // namespace millrace::actors
