// Chooses providers, exposes memory, and keeps it exposed exactly as long as an operation runs.
#include <millrace/runtime/client/calls/describe_call.hpp>
#include <millrace/runtime/client/calls/load_call.hpp>
#include <millrace/runtime/client/calls/placement.hpp>
#include <millrace/runtime/client/calls/store_call.hpp>
#include <millrace/runtime/client/repository.hpp>

#include <fmt/format.h>

#include <unordered_map>

namespace millrace {

namespace {

using runtime::client_core;

constexpr std::uint32_t list_page = 1000;

void begin_load(
  const std::shared_ptr<runtime::load_call>& call, const std::shared_ptr<client_core>& core,
  std::size_t provider, const std::string& model, std::vector<load_target> targets,
  const load_options& options) {
  actors::load_request request;
  request.model = model;
  request.version = options.version;
  request.timeout_ms = runtime::timeout_ms(*core, options.timeout);
  std::vector<tensor_view> views;
  for (auto& target : targets) {
    request.selections.push_back(
      {target.into.desc, target.first_row.has_value(), target.first_row.value_or(0)});
    views.push_back(std::move(target.into));
  }
  runtime::load_into<actors::store_service>(
    call, core, provider, std::move(request), std::move(views));
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
  const std::shared_ptr<client_core>& core, std::size_t provider, const std::string& model,
  std::span<std::byte> buffer, load_options options, Choose choose) {
  auto done = core->make_promise<loaded_tensors>();
  auto out = done.get_future();
  auto call = runtime::load_call::make(core);
  // Registered before the load begins: when the caller cancels, the buffer is its own again,
  // whatever the load is doing.
  static_cast<void>(done.on_cancel([weak = std::weak_ptr{call}] {
    if (auto c = weak.lock())
      c->outcome().cancel();
  }));
  runtime::ask_record(
    core, provider, model, options.version,
    [core, call, provider, model, buffer, options, choose,
     done](const result<model_record>& record) mutable {
      if (!record)
        return static_cast<void>(done.set(fail(record.error())));
      auto chosen = choose(*record);
      auto targets = chosen ? pack(*chosen, buffer) : fail(chosen.error());
      if (!targets)
        return static_cast<void>(done.set(fail(targets.error())));
      options.version = record->version;
      loaded_tensors loaded;
      for (auto& t : *targets)
        loaded.tensors.push_back(t.into);
      call->outcome().then([done, loaded](const result<load_receipt>& r) mutable {
        if (!r)
          return static_cast<void>(done.set(fail(r.error())));
        loaded.receipt = *r;
        done.set(std::move(loaded));
      });
      begin_load(call, core, provider, model, std::move(*targets), options);
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

} // namespace

repository::repository(std::shared_ptr<client_core> core, std::string group)
  : core_(std::move(core)), group_(std::move(group)) {}

future<receipt> repository::store(
  const std::string& model, const model_graph& graph, std::vector<tensor_view> tensors,
  store_options options) {
  auto provider = place(model, group_, core_->where().providers);
  if (!provider)
    return ready_future<receipt>(fail(provider.error()));
  return runtime::begin_store(core_, *provider, model, graph, std::move(tensors), options);
}

future<receipt> repository::store(
  const std::string& model, std::vector<tensor_view> tensors, store_options options) {
  layout l;
  for (auto& t : tensors)
    l.tensors.push_back(t.desc);
  // Names must be unique before they can be grouped.
  if (auto bad = validate(l); !bad.ok())
    return ready_future<receipt>(fail(bad.within("storing " + model)));
  return store(model, *core_->chain_for(model, l), std::move(tensors), std::move(options));
}

future<load_receipt> repository::load(
  const std::string& model, std::vector<load_target> targets, load_options options) {
  auto provider = place(model, group_, core_->where().providers);
  if (!provider)
    return ready_future<load_receipt>(fail(provider.error()));
  auto call = runtime::load_call::make(core_);
  auto out = call->outcome();
  begin_load(call, core_, *provider, model, std::move(targets), options);
  return out;
}

future<loaded_tensors> repository::load(
  const std::string& model, std::vector<std::string> names, std::span<std::byte> buffer,
  load_options options) {
  auto provider = place(model, group_, core_->where().providers);
  if (!provider)
    return ready_future<loaded_tensors>(fail(provider.error()));
  return load_chosen(
    core_, *provider, model, buffer, options,
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
  auto provider = place(model, group_, core_->where().providers);
  if (!provider)
    return ready_future<loaded_tensors>(fail(provider.error()));
  return load_chosen(
    core_, *provider, model, buffer, options,
    [layers = std::move(layers)](const model_record& record) {
      return tensors_of(record, layers);
    });
}

future<model_info> repository::describe(const std::string& model, std::uint64_t version) {
  auto provider = place(model, group_, core_->where().providers);
  if (!provider)
    return ready_future<model_info>(fail(provider.error()));
  auto done = core_->make_promise<model_info>();
  auto out = done.get_future();
  runtime::ask_record(
    core_, *provider, model, version,
    [core = core_, index = *provider, done](result<model_record> record) {
      if (!record)
        return static_cast<void>(done.set(fail(record.error())));
      runtime::resolve_layers(core, index, std::move(*record), done);
    });
  return out;
}

future<listed<model_summary>> repository::list(const std::string& prefix) {
  return runtime::list_models(core_, group_, prefix, list_page);
}

future<void> repository::erase(const std::string& model) {
  return runtime::acknowledge<actors::erase_request>(core_, group_, model, {model});
}

future<void> repository::pin(const std::string& model, bool pinned) {
  return runtime::acknowledge<actors::pin_request>(core_, group_, model, {model, pinned});
}

result<actors::provider_entry> repository::provider_of(const std::string& model) const {
  auto index = place(model, group_, core_->where().providers);
  if (!index)
    return fail(index.error());
  return core_->where().providers[*index];
}

} // namespace millrace
