// Requests records and layers, checks them and completes them.
#include <millrace/core/model_graph.hpp>
#include <millrace/runtime/client/calls/describe_call.hpp>
#include <millrace/runtime/client/calls/model_search.hpp>
#include <millrace/storage/model_check.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace millrace::runtime {

namespace {

using actors::store_service;

status broken(client_core& core, std::size_t provider, const std::string& what) {
  return {errc::protocol_error, "what provider {} says {}", core.entry(provider).name, what};
}

status check(
  client_core& core, std::size_t provider, const std::string& model, std::uint64_t version,
  const model_record& record) {
  if (record.spec.name != model || (version != 0 && record.version != version))
    return broken(
      core, provider,
      fmt::format(
        "is of model {}, version {}, asked for was {}", record.spec.name, record.version, model));
  // A provider makes the same check before it stores.
  if (auto checked = storage::check_spec(record.spec); !checked)
    return broken(core, provider, "of " + checked.error().detail());
  return {};
}

// A description in progress: known layers come from the cache, the others are fetched.
struct resolving {
  std::shared_ptr<client_core> core;
  std::size_t provider = 0;
  model_info info;
  std::vector<layer_id> asked; // sorted

  // Ignores layers that were not asked for: models of other providers may use them.
  result<model_info> complete(const std::vector<described_layer>& fetched) {
    std::unordered_map<layer_id, std::size_t> index_of;
    for (std::size_t i = 0; i < info.graph.ids.size(); ++i)
      index_of.emplace(info.graph.ids[i], i);
    std::unordered_map<layer_id, std::shared_ptr<const layer_description>> fresh;
    for (auto& layer : fetched) {
      if (!std::binary_search(asked.begin(), asked.end(), layer.id))
        continue;
      auto description = proven_description(info.graph, index_of.at(layer.id), layer.description);
      if (!description)
        return fail(broken(*core, provider, "is wrong: " + description.error().detail()));
      core->layers().add(layer.id, *description);
      fresh[layer.id] = std::make_shared<const layer_description>(std::move(*description));
    }
    for (std::size_t i = 0; i < info.layers.size(); ++i) {
      if (info.layers[i])
        continue;
      auto& id = info.graph.ids[i];
      auto found = fresh.find(id);
      if (found == fresh.end())
        return fail(broken(
          *core, provider,
          fmt::format("of {} leaves out layer {}", info.record.spec.name, to_string(id))));
      info.layers[i] = found->second;
    }
    return std::move(info);
  }
};

} // namespace

void ask_record(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  std::uint64_t version, time_point deadline, completion<found_record> done) {
  ask_keeper<found_record>(
    core, group, model, deadline,
    [core, group, model, version,
     deadline](std::size_t provider, actors::placement_claim by, completion<found_record> answer) {
      core->ask_until<store_service>(
        deadline, provider, actors::describe_request{model, version, by},
        [core, group, provider, model, version, by,
         answer = std::move(answer)](result<model_record> record) {
          if (!record)
            return answer(fail(record.error()));
          if (auto bad = check(*core, provider, model, version, *record); !bad.ok())
            return answer(fail(bad));
          auto known = std::make_shared<const known_model>(*record, core->entry(provider).name);
          if (version == 0)
            core->models().keep(group, model, known);
          answer(found_record{std::move(*record), std::move(known), provider, by});
        });
    },
    std::move(done));
}

void resolve_layers(
  const std::shared_ptr<client_core>& core, std::size_t provider, model_record record,
  time_point deadline, const promise<model_info>& done) {
  auto r = std::make_shared<resolving>();
  r->core = core;
  r->provider = provider;
  r->info.provider = core->entry(provider).name;
  if (!record.spec.graph.empty()) {
    auto graph = decode_graph(record.spec.graph);
    if (!graph)
      return static_cast<void>(done.set(fail(graph.error())));
    r->info.graph = std::move(*graph);
  }
  r->info.record = std::move(record);
  for (auto& id : r->info.graph.ids)
    if (!r->info.layers.emplace_back(core->layers().find(id)))
      r->asked.push_back(id);
  std::sort(r->asked.begin(), r->asked.end());
  r->asked.erase(std::unique(r->asked.begin(), r->asked.end()), r->asked.end());
  if (r->asked.empty())
    return static_cast<void>(done.set(r->complete({})));
  core->ask_until<store_service>(
    deadline, provider, actors::resolve_request{r->asked},
    [r, done](const result<actors::layer_list>& layers) {
      done.set(layers ? r->complete(layers->layers) : fail(layers.error()));
    });
}

} // namespace millrace::runtime
