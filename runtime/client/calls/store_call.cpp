// Stores models: builds the spec from graph and tensors, exposes or copies memory, describes layers
// at most once.
#include <millrace/core/codec.hpp>
#include <millrace/core/planted_defect.hpp>
#include <millrace/runtime/client/calls/model_erasing.hpp>
#include <millrace/runtime/client/calls/model_search.hpp>
#include <millrace/runtime/client/calls/receipt_check.hpp>
#include <millrace/runtime/client/calls/store_call.hpp>
#include <millrace/transport/memory/region.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

namespace millrace::runtime {

namespace {

using actors::store_request;
using actors::store_service;

// One store in progress.
struct store_call : std::enable_shared_from_this<store_call> {
  std::shared_ptr<client_core> core;
  std::string group;
  std::size_t provider = 0;
  std::optional<model_places> places; // where the model was before, once it was asked for
  int searches = 0;
  time_point deadline;
  promise<receipt> done;
  store_request request;
  std::vector<layer_id> ids; // the ids in the graph
  memory_block snapshot;
  transport::region region;
  bool told_all = false;

  void send() {
    auto message = request;
    if (!told_all) {
      auto& told = core->told(provider);
      std::erase_if(message.layers, [&](auto& layer) { return told.contains(layer.id); });
    }
    core->ask_until<store_service>(
      deadline, provider, std::move(message),
      [self = shared_from_this()](result<receipt> r) { self->answered(std::move(r)); });
  }

  void answered(result<receipt> r) {
    if (!r && r.error().code() == errc::unknown_layers && !told_all) {
      told_all = true;
      return send();
    }
    if (!r && asks_for_search(r.error()) && searches++ < searches_max)
      return search();
    region.withdraw();
    r = check_receipt(
      std::move(r), {request.spec.name, std::nullopt, millrace::size_bytes(request.spec.tensors)});
    if (r)
      core->told(provider).add(ids);
    if (r && places && !is_planted(defect::older_version_kept))
      return remove_others(*r);
    done.set(std::move(r));
  }

  void search() {
    find_model(
      core, group, request.spec.name, deadline,
      [self = shared_from_this()](const result<model_places>& found) {
        if (!found) {
          self->region.withdraw();
          return static_cast<void>(
            self->done.set(fail(found.error().within("storing " + self->request.spec.name))));
        }
        self->places = *found;
        self->provider = found->home;
        self->request.by = found->by;
        self->told_all = false;
        self->send();
      });
  }

  // Older versions elsewhere could be read later, when this one is erased or evicted.
  void remove_others(const receipt& stored) {
    std::erase_if(places->copies, [&](auto& copy) { return copy.provider == places->home; });
    erase_copies(
      core, stored.model, places->by, places->copies, deadline,
      [self = shared_from_this(), stored](const result<void>& removed) {
        self->done.set(
          removed ? result<receipt>{stored}
                  : fail(removed.error().within(fmt::format(
                      "model {} is stored at provider {}, but an older version was not removed; "
                      "store it again",
                      stored.model, stored.provider))));
      });
  }
};

// Finds the layer of each tensor. The graph's tensors must be those of the layout.
status match_tensors(model_spec& spec, const model_graph& graph) {
  struct place {
    std::uint32_t layer;
    const tensor_desc* tensor;
  };
  std::unordered_map<std::string, place> by_name;
  for (std::uint32_t i = 0; i < graph.layers().size(); ++i)
    for (auto& t : graph.layers()[i].tensors)
      by_name.emplace(tensor_name(graph.layers()[i], t), place{i, &t});
  if (by_name.size() != spec.tensors.tensors.size())
    return {
      errc::invalid_argument, "the graph has {} tensors, {} were given", by_name.size(),
      spec.tensors.tensors.size()};
  for (auto& t : spec.tensors.tensors) {
    auto found = by_name.find(t.name);
    if (found == by_name.end())
      return {errc::invalid_argument, "the graph has no tensor " + t.name};
    auto& expected = *found->second.tensor;
    if (expected.type != t.type || expected.shape != t.shape)
      return {
        errc::invalid_argument, "tensor {} is {}, its layer says {}", t.name, describe(t),
        describe(expected)};
    spec.tensor_layers.push_back(found->second.layer);
  }
  return {};
}

// Fills in the graph and the descriptions of its layers. The client caches them, too.
status describe_graph(store_call& call, const model_graph& graph) {
  auto known = hashed(graph);
  if (!known)
    return known.error();
  auto& spec = call.request.spec;
  spec.graph = (*known)->encoded;
  call.ids = (*known)->compact.ids;
  for (auto& [id, description] : (*known)->descriptions) {
    call.request.layers.push_back({id, description});
    if (!call.core->layers().find(id))
      if (auto decoded = decode<layer_description>(description, "a layer description"))
        call.core->layers().add(id, std::move(*decoded));
  }
  return match_tensors(spec, graph);
}

status copy_out(const transport::gather_list& list, std::byte* target) {
  auto bytes = list.size_bytes();
  if (!list.on_host()) {
    transport::device_batch batch{transport::device_way::to_host};
    list.copy_in_batch(batch, 0, target, bytes);
    return batch.finish();
  }
  list.read(
    0, target, bytes,
    bytes >= transport::streaming_bytes_min ? transport::store_mode::streaming
                                            : transport::store_mode::cached);
  transport::streaming_fence();
  return {};
}

// A small payload travels in the message. Larger tensors are exposed where they lie, or a snapshot
// of them is.
status offer_bytes(store_call& call, const std::vector<tensor_view>& tensors, bool snapshot) {
  auto list = transport::gather_list::of(tensors, access_mode::read);
  if (!list)
    return list.error();
  auto bytes = list->size_bytes();
  if (list->on_host() && bytes <= call.core->where().eager_bytes_max) {
    call.request.eager.resize(bytes);
    list->read(
      0, reinterpret_cast<std::byte*>(call.request.eager.data()), bytes,
      transport::store_mode::cached);
    return {};
  }
  if (snapshot) {
    auto staging = call.core->staging();
    auto block = staging ? (*staging)->allocate(bytes, 64) : fail(staging.error());
    if (!block)
      return block.error().within("taking a snapshot (client.staging)");
    if (auto bad = copy_out(*list, block->data); !bad.ok())
      return bad.within("taking a snapshot");
    tensor_view copy{{"snapshot", dtype::u8, {bytes}}, block->data, {}};
    list = transport::gather_list::of({copy}, access_mode::read);
    call.snapshot = std::move(*block);
  }
  call.region = transport::expose(std::move(*list), access_mode::read);
  call.request.source = call.region.handle();
  return {};
}

status prepare(
  store_call& call, const std::string& model, const model_graph& graph,
  const std::vector<tensor_view>& tensors, const store_options& options) {
  auto& spec = call.request.spec;
  spec.name = model;
  spec.metadata = options.metadata;
  spec.pinned = options.pinned;
  for (auto& t : tensors)
    spec.tensors.tensors.push_back(t.desc);
  if (auto bad = validate_model_name(model); !bad.ok())
    return bad;
  if (auto bad = validate(spec.tensors); !bad.ok())
    return bad;
  if (auto bad = describe_graph(call, graph); !bad.ok())
    return bad;
  return offer_bytes(call, tensors, options.snapshot);
}

} // namespace

future<receipt> begin_store(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  const model_graph& graph, std::vector<tensor_view> tensors, const store_options& options) {
  auto provider = core->place_new(model, group);
  if (!provider)
    return ready_future<receipt>(fail(provider.error()));
  auto call = std::make_shared<store_call>();
  call->core = core;
  call->group = group;
  call->provider = *provider;
  call->request.by = {group, 0};
  call->done = core->make_promise<receipt>();
  auto out = call->done.get_future();
  if (auto bad = prepare(*call, model, graph, tensors, options); !bad.ok())
    return ready_future<receipt>(fail(bad.within("storing " + model)));
  call->deadline = core->deadline_after(options.timeout);
  call->request.checksums = options.checksums.value_or(core->entry(*provider).checksums);
  // The caller does not have the future yet, so it cannot have cancelled.
  static_cast<void>(call->done.on_cancel([weak = std::weak_ptr{call}] {
    if (auto c = weak.lock())
      c->region.withdraw();
  }));
  call->send();
  return out;
}

} // namespace millrace::runtime
