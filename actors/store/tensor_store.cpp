// Lists the messages of the provider's actor. The operations are in files of their own.
#include <millrace/actors/store/store_context.hpp>
#include <millrace/actors/watched_actor.hpp>
#include <millrace/core/race_plant.hpp>
#include <millrace/storage/model_check.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace millrace::actors {

namespace {

constexpr std::uint32_t layers_resolved_max = 65536;
constexpr std::uint32_t listed_max = 10'000;

// To clients, a provider's own records are no models. Answers and returns true for their names.
template <class T>
bool refuse_own_name(const std::string& name, const completion<T>& done) {
  auto own = storage::is_own_name(name);
  if (own)
    done(fail(storage::no_such_model(name, 0, 0)));
  return own;
}

class tensor_store : public watched_actor<tensor_store_actor, store_context> {
public:
  using watched_actor::watched_actor;

  const char* name() const override { return "tensor_store"; }

  behavior_type make_behavior() override {
    using self = tensor_store;
    context_->published = [this](const std::string& model, std::uint64_t version) {
      watches().reached(model, version);
    };
    return handlers(
      &self::store, &self::load, &self::describe, &self::list, &self::erase, &self::pin,
      &self::resolve, &self::report, &self::locate, &self::adopt, &self::store_many,
      &self::load_many, &self::watch_model, &self::unwatch, &self::tell_news);
  }

protected:
  void give_up_all(const status& why) override {
    unkept_.clear();
    watched_actor::give_up_all(why);
  }

private:
  storage::bucket& bucket() { return *context_->deps.bucket; }
  const operation_limits& limits() const { return context_->deps.limits; }

  // Return what makes the operation of a request, which must live until then.
  auto maker_of(store_request& request) {
    return [this, &request](time_point arrived, answer<store_receipt> done) {
      return make_store_operation(context_, std::move(request), arrived, std::move(done));
    };
  }
  auto maker_of(load_request& request) {
    return [this, &request](time_point arrived, answer<load_reply> done) {
      auto open = [this, name = request.model, version = request.version,
                   by = request.by](auto opened) { find(name, version, by, std::move(opened)); };
      return make_load_operation(
        context_, std::move(request), std::move(open), arrived, std::move(done));
    };
  }

  caf::result<store_receipt> store(store_request& request) {
    MILLRACE_PLANTED_RACE("tensor_store");
    return operate<store_receipt>(stores_, maker_of(request), counter());
  }

  caf::result<load_reply> load(load_request& request) {
    return operate<load_reply>(loads_, maker_of(request), counter());
  }

  caf::result<outcomes_of<store_receipt>> store_many(store_many_request& request) {
    return operate_all<store_receipt>(stores_, request);
  }

  caf::result<outcomes_of<load_reply>> load_many(load_many_request& request) {
    return operate_all<load_reply>(loads_, request);
  }

  template <class Receipt, class Request>
  caf::result<outcomes_of<Receipt>> operate_all(operation_lane& lane, several<Request>& request) {
    auto size = request.items.size();
    if (size > requests_together_max)
      return caf::make_error(
        errc::invalid_argument,
        fmt::format(
          "{} requests in one message; at most {} are allowed", size, requests_together_max));
    for (auto& item : request.items) {
      item.from = request.from;
      item.timeout_ms = request.timeout_ms;
    }
    return operate_many<Receipt>(
      lane, size, [&](std::size_t i) { return maker_of(request.items[i]); }, counter());
  }

  using opened = std::shared_ptr<storage::opened_model>;

  placement_keeper& placement() { return context_->placement; }

  // Opens a version if this provider can answer for its model, see `placement_keeper`.
  void find(
    const std::string& name, std::uint64_t version, const placement_claim& by,
    completion<opened> done) {
    if (refuse_own_name(name, done))
      return;
    bucket().open(
      name, version,
      context_->home<opened>([this, name, by, done = std::move(done)](result<opened> r) {
        done(placement().check_opened(name, by, std::move(r)));
      }));
  }

  // Runs `change(done)`. A new view of the group waits for its end.
  template <class Change>
  void change_model(Change change, completion<void> done) {
    placement().begin_change();
    change(context_->home<void>([this, done = std::move(done)](result<void> outcome) {
      placement().end_change();
      done(std::move(outcome));
    }));
  }

  struct counts {
    tensor_store* of;
    void operator()(const result<store_receipt>& r) const {
      of->count(r, of->counted_.stores, of->counted_.stored_bytes);
    }
    void operator()(const result<load_reply>& r) const {
      of->count(r, of->counted_.loads, of->counted_.loaded_bytes);
    }
  };
  counts counter() { return {this}; }

  // A client that must ask others first repeats its request, so that answer is no failure.
  template <class Receipt>
  void count(const result<Receipt>& outcome, std::uint64_t& number, std::uint64_t& bytes) {
    if (!outcome && outcome.error().code() == errc::unsupported_version)
      return;
    ++(outcome ? number : counted_.failures);
    if (outcome)
      bytes += outcome->size_bytes;
  }

  caf::result<model_record> describe(describe_request& request) {
    return answer_from<model_record, std::shared_ptr<storage::opened_model>>(
      [&](auto done) { find(request.model, request.version, request.by, std::move(done)); },
      [](auto& model) {
        auto record = model->record();
        record.digests.clear();
        return record;
      },
      request.timeout_ms);
  }

  caf::result<model_list> list(const list_request& request) {
    return answer_from<model_list, std::vector<model_summary>>(
      [&](auto done) {
        bucket().list(
          request.prefix, std::max(request.after, storage::after_own_names()),
          std::min(request.count_max, listed_max), std::move(done));
      },
      [this](auto& models) {
        for (auto& m : models)
          if (m.group.empty())
            m.group = placement().kept().first_group;
        return model_list{std::move(models)};
      },
      request.timeout_ms);
  }

  caf::result<done_reply> erase(const erase_request& request) {
    return answer_from<done_reply, void>(
      [&](completion<void> done) {
        if (refuse_own_name(request.model, done))
          return;
        if (!placement().is_mixed())
          return erase_here(request, std::move(done));
        if (auto may = placement().may_answer(request.model, request.by); !may.ok())
          return done(fail(may));
        bucket().open(
          request.model, 0,
          context_->home<opened>([this, request, done = std::move(done)](const result<opened>& r) {
            auto& group = placement().group_of(request.by);
            auto ours = r && placement().group_of((*r)->record().spec) == group;
            auto none = !r && r.error().code() == errc::not_found;
            if (ours || (none && request.mark))
              return erase_here(request, done);
            done(fail(r ? storage::no_such_model(request.model, 0, 0) : r.error()));
          }));
      },
      [] { return done_reply{}; }, request.timeout_ms);
  }

  void erase_here(const erase_request& request, completion<void> done) {
    auto may = placement().may_answer(request.model, request.by);
    if (!may.ok())
      return done(fail(may));
    change_model(
      [&](auto erased) {
        if (!request.mark)
          return bucket().erase(request.model, request.version, std::move(erased));
        model_spec mark;
        mark.name = request.model;
        mark.pinned = mark.erased = true;
        mark.group = placement().group_of(request.by);
        mark.view = request.by.number;
        store_empty(bucket(), std::move(mark), std::move(erased));
      },
      std::move(done));
  }

  caf::result<done_reply> pin(const pin_request& request) {
    return answer_from<done_reply, void>(
      [&](completion<void> done) {
        find(
          request.model, 0, request.by,
          [this, request, done = std::move(done)](const result<opened>& r) {
            if (!r)
              return done(fail(r.error()));
            change_model(
              [&](auto changed) {
                bucket().pin(request.model, request.pinned, std::move(changed));
              },
              done);
          });
      },
      [] { return done_reply{}; }, request.timeout_ms);
  }

  caf::result<location> locate(locate_request& request) {
    return answer_from<location, location>(
      [&](completion<location> done) {
        if (refuse_own_name(request.model, done))
          return;
        auto said = placement().describe(request.group);
        said.forgets = forgets(bucket());
        if (request.model.empty())
          return done(std::move(said));
        bucket().open(
          request.model, 0,
          context_->home<opened>(
            [this, said, group = request.group, done = std::move(done)](result<opened> r) mutable {
              if (!r && r.error().code() != errc::not_found)
                return done(fail(r.error()));
              if (r && placement().group_of((*r)->record().spec) == group)
                add_version(said, (*r)->record());
              done(std::move(said));
            }));
      },
      [](auto& said) { return std::move(said); }, request.timeout_ms);
  }

  static void add_version(location& said, const model_record& record) {
    said.has_model = true;
    said.erased = record.spec.erased;
    said.view = record.spec.view;
    said.version = record.version;
    said.stored_at_ns = record.stored_at_ns;
  }

  caf::result<done_reply> adopt(const adopt_request& request) {
    return answer_from<done_reply, void>(
      [&](completion<void> done) {
        auto& group = request.history.group;
        auto before = placement().describe(group).history.settled;
        auto adopted = placement().adopt(request);
        if (!adopted)
          return done(fail(adopted.error()));
        // Names may be placed elsewhere now. Their clients find out where.
        if (placement().describe(group).history.settled != before)
          watches().end_all(
            {errc::unsupported_version, "the providers of group {} have changed", group});
        auto keep = [this, done = std::move(done)] {
          if (is_kept())
            return done({});
          unkept_.push_back(done);
          keep_next();
        };
        *adopted ? placement().when_idle(std::move(keep)) : keep();
      },
      [] { return done_reply{}; });
  }

  // A provider that learns nothing new need not write, and may have no room for it.
  bool is_kept() {
    auto& kept = context_->deps.placement;
    return !keeping_ && unkept_.empty() && kept && *kept == placement().kept();
  }

  // One write after the other, so that a later one stays. One answers all that came before it.
  void keep_next() {
    if (keeping_ || unkept_.empty())
      return;
    keeping_ = true;
    keep_placement(
      bucket(), placement().kept(),
      context_->home<void>([this, what = placement().kept(),
                            answers = std::exchange(unkept_, {})](const result<void>& kept) {
        keeping_ = false;
        if (kept && context_->deps.placement)
          *context_->deps.placement = what;
        for (auto& answer : answers)
          answer(kept);
        keep_next();
      }));
  }

  // The next store of the model must come here.
  caf::result<done_reply> watch_model(const watch_request& request) {
    if (auto bad = validate_model_name(request.name); !bad.ok())
      return to_caf_error(bad);
    if (storage::is_own_name(request.name))
      return to_caf_error(storage::no_such_model(request.name, 0, 0));
    if (auto claim = placement().may_store(request.name, request.by); !claim)
      return to_caf_error(claim.error());
    return park(request);
  }

  caf::result<layer_list> resolve(resolve_request& request) {
    if (request.ids.size() > layers_resolved_max)
      return caf::make_error(errc::invalid_argument, std::string{"too many layers in one request"});
    return answer_from<layer_list, std::vector<described_layer>>(
      [&](auto done) { bucket().resolve(std::move(request.ids), std::move(done)); },
      [](auto& layers) { return layer_list{std::move(layers)}; }, request.timeout_ms);
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
    out.store.views_bytes = placement().kept_bytes();
    out.store.descriptions_bytes = stats.descriptions_bytes;
    out.store.marks = stats.marks;
    out.store.watches = watches().size();
    return out;
  }

  std::vector<completion<void>> unkept_;
  bool keeping_ = false;
  operation_lane& stores_ = add_lane(limits().stores_max, limits().queued_max);
  operation_lane& loads_ = add_lane(limits().loads_max, limits().queued_max);
  store_status counted_; // only the counters that this actor counts are used
};

} // namespace

tensor_store_actor spawn_tensor_store(caf::actor_system& system, tensor_store_deps deps) {
  return system.spawn<tensor_store>(std::move(deps));
}

} // namespace millrace::actors
