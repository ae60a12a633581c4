// Chooses providers, exposes memory, and keeps it exposed exactly as long as an operation runs.
#include <millrace/runtime/client/calls/describe_call.hpp>
#include <millrace/runtime/client/calls/load_call.hpp>
#include <millrace/runtime/client/calls/model_erasing.hpp>
#include <millrace/runtime/client/calls/model_listing.hpp>
#include <millrace/runtime/client/calls/model_search.hpp>
#include <millrace/runtime/client/calls/request_batch.hpp>
#include <millrace/runtime/client/calls/store_call.hpp>
#include <millrace/runtime/client/repository.hpp>

#include <fmt/format.h>

#include <optional>
#include <unordered_map>
#include <utility>

namespace millrace {

namespace {

using runtime::client_core;

constexpr std::uint32_t list_page = 1000;

// Where a load asks first.
struct load_from {
  std::size_t provider = 0;
  actors::placement_claim by;
};

void begin_load(
  const std::shared_ptr<runtime::load_call>& call, const std::shared_ptr<client_core>& core,
  const load_from& from, const std::string& model, std::vector<load_target> targets,
  std::uint64_t version, time_point deadline, runtime::load_batch* batch = nullptr) {
  std::vector<tensor_view> views;
  std::vector<std::optional<std::uint64_t>> rows;
  for (auto& target : targets) {
    rows.push_back(target.first_row);
    views.push_back(std::move(target.into));
  }
  auto asked = version != 0 ? std::optional{version} : std::nullopt;
  auto memory = call->open(model, asked, std::move(views));
  if (!memory)
    return call->finish(fail(memory.error()));
  auto ask = [core, call, model, memory = *memory, rows = std::move(rows), version, deadline,
              batch](
               std::size_t provider, actors::placement_claim by,
               completion<load_receipt> done) mutable {
    actors::load_request request;
    request.model = model;
    request.version = version;
    request.target = memory;
    request.by = std::move(by);
    for (std::size_t i = 0; i < rows.size(); ++i)
      request.selections.push_back(
        {call->targets()[i].desc, rows[i].has_value(), rows[i].value_or(0)});
    // The batch gets the first request only, while it exists.
    if (auto* together = std::exchange(batch, nullptr); together && !memory.length_bytes)
      return together->add(
        deadline, provider, std::move(request), call->size_bytes(), std::move(done));
    core->ask_until<actors::store_service>(deadline, provider, std::move(request), std::move(done));
  };
  std::make_shared<runtime::keeper_call<load_receipt>>(
    core, from.by.group, model, deadline, std::move(ask),
    [call](result<load_receipt> r) { call->finish(std::move(r)); })
    ->begin_at(from.provider, from.by);
}

future<load_receipt> load_into(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  std::vector<load_target> targets, std::uint64_t version, time_point deadline,
  runtime::load_batch* batch = nullptr) {
  auto provider = core->place_now(model, group);
  if (!provider)
    return ready_future<load_receipt>(fail(provider.error()));
  auto call = runtime::load_call::make(core);
  begin_load(
    call, core, {*provider, {group, 0}}, model, std::move(targets), version, deadline, batch);
  return call->outcome();
}

// Returns the targets of a load into one buffer.
result<std::vector<load_target>> pack(
  const std::vector<tensor_desc>& chosen, std::span<std::byte> buffer) {
  std::uint64_t needed = 0;
  for (auto& tensor : chosen) {
    auto bytes = size_bytes(tensor);
    if (!bytes)
      return fail(bytes.error());
    // The same tensor may be requested more than once.
    if (__builtin_add_overflow(needed, *bytes, &needed))
      return fail(errc::invalid_argument, "the size of the tensors overflows 64 bits");
  }
  if (needed > buffer.size())
    return fail(errc::no_space, "the tensors have {} bytes, the buffer {}", needed, buffer.size());
  std::vector<load_target> targets;
  std::uint64_t at = 0;
  for (auto& tensor : chosen) {
    targets.push_back({{tensor, buffer.data() + at, {}}, {}});
    at += *size_bytes(tensor);
  }
  return targets;
}

// Loads what `choose` picks from the model's record into a buffer.
template <class Choose>
future<loaded_tensors> load_chosen(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  std::span<std::byte> buffer, const load_options& options, Choose choose) {
  auto done = core->make_promise<loaded_tensors>();
  auto out = done.get_future();
  auto call = runtime::load_call::make(core);
  // Registered before the load begins: when the caller cancels, the buffer is its own again,
  // whatever the load is doing.
  static_cast<void>(done.on_cancel([weak = std::weak_ptr{call}] {
    if (auto c = weak.lock())
      c->outcome().cancel();
  }));
  auto deadline = core->deadline_after(options.timeout);
  runtime::ask_record(
    core, group, model, options.version, deadline,
    [core, call, model, buffer, deadline, choose,
     done](const result<runtime::found_record>& r) mutable {
      if (!r)
        return static_cast<void>(done.set(fail(r.error())));
      auto* record = &r->record;
      auto chosen = choose(*record);
      auto targets = chosen ? pack(*chosen, buffer) : fail(chosen.error());
      if (!targets)
        return static_cast<void>(done.set(fail(targets.error())));
      loaded_tensors loaded;
      for (auto& t : *targets)
        loaded.tensors.push_back(t.into);
      call->outcome().then([done, loaded](const result<load_receipt>& outcome) mutable {
        if (!outcome)
          return static_cast<void>(done.set(fail(outcome.error())));
        loaded.receipt = *outcome;
        done.set(std::move(loaded));
      });
      begin_load(
        call, core, {r->provider, r->by}, model, std::move(*targets), record->version, deadline);
    });
  return out;
}

// Returns the tensors of each layer in turn.
result<std::vector<tensor_desc>> tensors_of(
  const model_record& record, const std::vector<layer_id>& layers) {
  auto graph = decode_graph(record.spec.graph);
  if (!graph)
    return fail(graph.error());
  std::unordered_map<layer_id, std::vector<std::size_t>> by_layer;
  for (auto& id : graph->ids)
    by_layer[id];
  for (std::size_t t = 0; t < record.spec.tensor_layers.size(); ++t)
    by_layer[graph->ids[record.spec.tensor_layers[t]]].push_back(t);
  std::vector<tensor_desc> chosen;
  for (auto& id : layers) {
    auto found = by_layer.find(id);
    if (found == by_layer.end())
      return fail(
        errc::not_found, fmt::format("model {} has no layer {}", record.spec.name, to_string(id)));
    for (auto t : found->second)
      chosen.push_back(record.spec.tensors.tensors[t]);
  }
  return chosen;
}

// Groups the tensors by their names, which must be unique before they can be grouped.
result<std::shared_ptr<const model_graph>> chain_of(
  runtime::client_core& core, const std::string& model, const std::vector<tensor_view>& tensors) {
  layout l;
  for (auto& t : tensors)
    l.tensors.push_back(t.desc);
  if (auto bad = validate(l); !bad.ok())
    return fail(bad.within("storing " + model));
  return core.chain_for(model, l);
}

} // namespace

repository::repository(std::shared_ptr<client_core> core, std::string group)
  : core_(std::move(core)), group_(std::move(group)) {}

future<receipt> repository::store(
  const std::string& model, const model_graph& graph, std::vector<tensor_view> tensors,
  store_options options) {
  return runtime::begin_store(
           core_, group_, model, graph, std::move(tensors), options, runtime::store_from::tensors)
    .stored;
}

future<receipt> repository::store(
  const std::string& model, std::vector<tensor_view> tensors, store_options options) {
  auto chain = chain_of(*core_, model, tensors);
  if (!chain)
    return ready_future<receipt>(fail(chain.error()));
  return store(model, **chain, std::move(tensors), std::move(options));
}

std::vector<future<receipt>> repository::store_many(std::vector<model_to_store> models) {
  runtime::store_batch batch{core_};
  std::vector<future<receipt>> out;
  out.reserve(models.size());
  for (auto& m : models) {
    std::shared_ptr<const model_graph> chain;
    if (!m.graph) {
      auto made = chain_of(*core_, m.model, m.tensors);
      if (!made) {
        out.push_back(ready_future<receipt>(fail(made.error())));
        continue;
      }
      chain = std::move(*made);
    }
    out.push_back(runtime::begin_store(
                    core_, group_, m.model, m.graph ? *m.graph : *chain, std::move(m.tensors),
                    m.options, runtime::store_from::tensors, &batch)
                    .stored);
  }
  batch.send();
  return out;
}

pending_store repository::store_snapshot(
  const std::string& model, const model_graph& graph, std::vector<tensor_view> tensors,
  store_options options) {
  return runtime::begin_store(
    core_, group_, model, graph, std::move(tensors), options, runtime::store_from::snapshot);
}

pending_store repository::store_snapshot(
  const std::string& model, std::vector<tensor_view> tensors, store_options options) {
  auto chain = chain_of(*core_, model, tensors);
  if (!chain)
    return runtime::failed_store(chain.error());
  return store_snapshot(model, **chain, std::move(tensors), std::move(options));
}

future<load_receipt> repository::load(
  const std::string& model, std::vector<load_target> targets, load_options options) {
  return load_into(
    core_, group_, model, std::move(targets), options.version,
    core_->deadline_after(options.timeout));
}

std::vector<future<load_receipt>> repository::load_many(std::vector<model_to_load> models) {
  runtime::load_batch batch{core_};
  std::vector<future<load_receipt>> out;
  out.reserve(models.size());
  for (auto& m : models)
    out.push_back(load_into(
      core_, group_, m.model, std::move(m.targets), m.options.version,
      batch.deadline_of(m.options.timeout), &batch));
  batch.send();
  return out;
}

future<loaded_tensors> repository::load(
  const std::string& model, std::vector<std::string> names, std::span<std::byte> buffer,
  load_options options) {
  return load_chosen(
    core_, group_, model, buffer, options,
    [names = std::move(names),
     model](const model_record& record) -> result<std::vector<tensor_desc>> {
      auto& all = record.spec.tensors.tensors;
      if (names.empty())
        return all;
      std::unordered_map<std::string_view, const tensor_desc*> by_name;
      for (auto& t : all)
        by_name.emplace(t.name, &t);
      std::vector<tensor_desc> chosen;
      for (auto& name : names) {
        auto found = by_name.find(name);
        if (found == by_name.end())
          return fail(errc::not_found, fmt::format("model {} has no tensor {}", model, name));
        chosen.push_back(*found->second);
      }
      return chosen;
    });
}

future<loaded_tensors> repository::load_layers(
  const std::string& model, std::vector<layer_id> layers, std::span<std::byte> buffer,
  load_options options) {
  return load_chosen(
    core_, group_, model, buffer, options,
    [layers = std::move(layers)](const model_record& record) {
      return tensors_of(record, layers);
    });
}

future<model_info> repository::describe(const std::string& model, std::uint64_t version) {
  auto done = core_->make_promise<model_info>();
  auto deadline = core_->deadline_after();
  runtime::ask_record(
    core_, group_, model, version, deadline,
    [core = core_, deadline, done](result<runtime::found_record> r) {
      if (!r)
        return static_cast<void>(done.set(fail(r.error())));
      runtime::resolve_layers(core, r->provider, std::move(r->record), deadline, done);
    });
  return done.get_future();
}

future<listed<model_summary>> repository::list(const std::string& prefix) {
  return runtime::list_models(core_, group_, prefix, list_page);
}

future<void> repository::erase(const std::string& model) {
  auto done = core_->make_promise<void>();
  runtime::erase_model(
    core_, group_, model, core_->deadline_after(), [done](const result<void>& r) { done.set(r); });
  return done.get_future();
}

future<void> repository::pin(const std::string& model, bool pinned) {
  auto done = core_->make_promise<void>();
  auto deadline = core_->deadline_after();
  runtime::ask_keeper<actors::done_reply>(
    core_, group_, model, deadline,
    [core = core_, model, pinned, deadline](
      std::size_t provider, actors::placement_claim by, completion<actors::done_reply> answer) {
      core->ask_until<actors::store_service>(
        deadline, provider, actors::pin_request{model, pinned, std::move(by)}, std::move(answer));
    },
    [done](const result<actors::done_reply>& r) {
      done.set(r ? result<void>{} : fail(r.error()));
    });
  return done.get_future();
}

result<actors::provider_entry> repository::provider_of(const std::string& model) const {
  auto index = core_->place_new(model, group_);
  if (!index)
    return fail(index.error());
  return core_->entry(*index);
}

} // namespace millrace
