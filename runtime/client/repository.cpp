// Begins the calls of a repository.
#include <millrace/runtime/client/calls/describe_call.hpp>
#include <millrace/runtime/client/calls/model_erasing.hpp>
#include <millrace/runtime/client/calls/model_listing.hpp>
#include <millrace/runtime/client/calls/model_load.hpp>
#include <millrace/runtime/client/calls/model_search.hpp>
#include <millrace/runtime/client/calls/request_batch.hpp>
#include <millrace/runtime/client/calls/store_call.hpp>
#include <millrace/runtime/client/calls/watches.hpp>
#include <millrace/runtime/client/repository.hpp>

#include <fmt/format.h>

#include <optional>
#include <unordered_map>
#include <utility>

namespace millrace {

namespace {

using runtime::client_core;

constexpr std::uint32_t list_page = 1000;

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
  if (auto refused = core_->refused<receipt>(model))
    return *refused;
  return runtime::begin_store(
           core_, group_, model, graph, std::move(tensors), options, runtime::store_from::tensors)
    .stored;
}

future<receipt> repository::store(
  const std::string& model, std::vector<tensor_view> tensors, store_options options) {
  if (auto refused = core_->refused<receipt>(model))
    return *refused;
  auto chain = chain_of(*core_, model, tensors);
  if (!chain)
    return ready_future<receipt>(fail(chain.error()));
  return runtime::begin_store(
           core_, group_, model, **chain, std::move(tensors), options, runtime::store_from::tensors)
    .stored;
}

std::vector<future<receipt>> repository::store_many(std::vector<model_to_store> models) {
  if (auto refused = core_->refused<receipt>())
    return {models.size(), *refused};
  runtime::store_batch batch{core_};
  std::vector<future<receipt>> out;
  out.reserve(models.size());
  for (auto& m : models) {
    if (auto refused = core_->refused<receipt>(m.model)) {
      out.push_back(*refused);
      continue;
    }
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
  if (auto refused = core_->refused<receipt>(model))
    return runtime::failed_store(refused->result().error());
  return runtime::begin_store(
    core_, group_, model, graph, std::move(tensors), options, runtime::store_from::snapshot);
}

pending_store repository::store_snapshot(
  const std::string& model, std::vector<tensor_view> tensors, store_options options) {
  if (auto refused = core_->refused<receipt>(model))
    return runtime::failed_store(refused->result().error());
  auto chain = chain_of(*core_, model, tensors);
  if (!chain)
    return runtime::failed_store(chain.error());
  return runtime::begin_store(
    core_, group_, model, **chain, std::move(tensors), options, runtime::store_from::snapshot);
}

future<load_receipt> repository::load(
  const std::string& model, std::vector<load_target> targets, load_options options) {
  if (auto refused = core_->refused<load_receipt>(model))
    return *refused;
  return runtime::begin_load(
    core_, group_, model, std::move(targets), options.version,
    core_->deadline_after(options.timeout));
}

std::vector<future<load_receipt>> repository::load_many(std::vector<model_to_load> models) {
  if (auto refused = core_->refused<load_receipt>())
    return {models.size(), *refused};
  runtime::load_batch batch{core_};
  std::vector<future<load_receipt>> out;
  out.reserve(models.size());
  for (auto& m : models) {
    if (auto refused = core_->refused<load_receipt>(m.model)) {
      out.push_back(*refused);
      continue;
    }
    out.push_back(runtime::begin_load(
      core_, group_, m.model, std::move(m.targets), m.options.version,
      batch.deadline_of(m.options.timeout), &batch));
  }
  batch.send();
  return out;
}

future<loaded_tensors> repository::load(
  const std::string& model, std::vector<std::string> names, std::span<std::byte> buffer,
  load_options options) {
  if (auto refused = core_->refused<loaded_tensors>(model))
    return *refused;
  return runtime::begin_load_of(
    core_, group_, model, buffer, options,
    [names = std::move(names),
     model](const runtime::known_model& known) -> result<std::vector<tensor_desc>> {
      if (names.empty())
        return known.tensors();
      std::vector<tensor_desc> chosen;
      chosen.reserve(names.size());
      for (auto& name : names) {
        auto* tensor = known.tensor(name);
        if (!tensor)
          return fail(errc::not_found, "model {} has no tensor {}", model, name);
        chosen.push_back(*tensor);
      }
      return chosen;
    });
}

future<loaded_tensors> repository::load_layers(
  const std::string& model, std::vector<layer_id> layers, std::span<std::byte> buffer,
  load_options options) {
  if (auto refused = core_->refused<loaded_tensors>(model))
    return *refused;
  return runtime::begin_load_of(
    core_, group_, model, buffer, options,
    [layers = std::move(layers),
     model](const runtime::known_model& known) -> result<std::vector<tensor_desc>> {
      std::vector<tensor_desc> chosen;
      for (auto& id : layers) {
        auto* tensors = known.layer(id);
        if (!tensors)
          return fail(errc::not_found, "model {} has no layer {}", model, to_string(id));
        for (auto t : *tensors)
          chosen.push_back(known.tensors()[t]);
      }
      return chosen;
    });
}

future<model_info> repository::describe(const std::string& model, std::uint64_t version) {
  if (auto refused = core_->refused<model_info>(model))
    return *refused;
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

future<model_record> repository::newer(
  const std::string& model, std::uint64_t than, std::chrono::milliseconds timeout) {
  if (auto refused = core_->refused<model_record>(model))
    return *refused;
  return runtime::watch_model(core_, group_, model, than, timeout);
}

future<listed<model_summary>> repository::list(const std::string& prefix) {
  if (auto refused = core_->refused<listed<model_summary>>())
    return *refused;
  return runtime::list_models(core_, group_, prefix, list_page);
}

future<void> repository::erase(const std::string& model) {
  if (auto refused = core_->refused<void>(model))
    return *refused;
  auto done = core_->make_promise<void>();
  runtime::erase_model(
    core_, group_, model, core_->deadline_after(), [done](const result<void>& r) { done.set(r); });
  return done.get_future();
}

future<void> repository::pin(const std::string& model, bool pinned) {
  if (auto refused = core_->refused<void>(model))
    return *refused;
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

result<provider_entry> repository::provider_of(const std::string& model) const {
  if (auto why = core_->refusal(); !why.ok())
    return fail(std::move(why));
  auto index = core_->place_new(model, group_);
  if (!index)
    return fail(index.error());
  return core_->entry(*index);
}

} // namespace millrace
