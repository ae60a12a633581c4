// Stores models: builds the spec from graph and tensors, exposes them or a copy, describes layers
// at most once.
#include <millrace/core/codec.hpp>
#include <millrace/core/planted_defect.hpp>
#include <millrace/runtime/client/calls/model_erasing.hpp>
#include <millrace/runtime/client/calls/model_search.hpp>
#include <millrace/runtime/client/calls/receipt_check.hpp>
#include <millrace/runtime/client/calls/store_call.hpp>
#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/memory/region.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
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
  std::optional<promise<void>> staged; // of a snapshot
  store_request request;
  std::shared_ptr<const hashed_graph> graph; // the request describes the layers that are to be told
  bool told_all = false;
  std::mutex mutex; // of the next two
  bool over = false;
  transport::region tensors, copy;
  memory_block block; // of the copy; empty: the provider reads the tensors

  void send(store_batch* batch = nullptr) {
    request.layers.clear();
    auto& told = core->told(provider);
    for (auto& [id, description] : graph->descriptions)
      if (told_all || !told.contains(id))
        request.layers.push_back({id, description});
    auto done = [self = shared_from_this()](result<receipt> r) { self->answered(std::move(r)); };
    if (!batch || request.source.length_bytes)
      return core->ask_keeping<store_service>(deadline, provider, request, std::move(done));
    batch->add(deadline, provider, request, 0, std::move(done));
  }

  void answered(result<receipt> r) {
    if (!r && r.error().code() == errc::unknown_layers && !told_all) {
      told_all = true;
      return send();
    }
    if (!r && asks_for_search(r.error()) && searches++ < searches_max)
      return search();
    withdraw();
    if (r && staged)
      staged->set({}); // if the tensors themselves were read
    r = check_receipt(
      std::move(r), {request.spec.name, std::nullopt, millrace::size_bytes(request.spec.tensors)});
    if (r)
      core->told(provider).add(graph->compact.ids);
    if (r && places && !is_planted(defect::older_version_kept))
      return remove_others(*r);
    end(std::move(r));
  }

  void end(result<receipt> r) {
    withdraw();
    if (staged)
      staged->set(r ? result<void>{} : fail(r.error()));
    done.set(std::move(r));
  }

  // Exposes the list, unless the store is over.
  bool expose(transport::region& as, transport::gather_list list) {
    std::lock_guard guard{mutex};
    if (over)
      return false;
    as = transport::expose(std::move(list), access_mode::read);
    request.source = as.handle();
    return true;
  }

  bool is_over() {
    std::lock_guard guard{mutex};
    return over;
  }

  void withdraw() {
    {
      std::lock_guard guard{mutex};
      over = true;
    }
    tensors.withdraw();
    copy.withdraw();
  }

  void begin(store_batch* batch) {
    // The caller does not have the futures yet, so it cannot have cancelled.
    static_cast<void>(done.on_cancel([weak = weak_from_this()] {
      if (auto c = weak.lock())
        c->withdraw();
    }));
    if (staged)
      static_cast<void>(staged->on_cancel([weak = weak_from_this()] {
        if (auto c = weak.lock())
          c->done.get_future().cancel();
      }));
    if (block.data)
      take_copy();
    else
      send(batch);
  }

  // The same job as for a provider's pull: a store that is cancelled ends it.
  void take_copy() {
    auto from = transport::find_region(
      request.source.region, request.source.key, access_mode::read, transport::memory_reach::any);
    if (!from)
      return on_copied(from.error());
    transport::copy_job job{
      .memory = *from,
      .ops = {{0, block.data, block.size_bytes}},
      .hold = block.owner,
      .abandoned = nullptr,
      .prepare = {}};
    transport::run_copy_job(
      *core->runs_on()->fabric()->movers(), {}, std::move(job),
      [self = shared_from_this()](const result<transport::copied>& r) {
        self->on_copied(r ? status{} : r.error());
      });
  }

  void on_copied(const status& copied) {
    if (copied.ok()) {
      tensors.withdraw();
      tensor_view view{{"snapshot", dtype::u8, {block.size_bytes}}, block.data, {}};
      auto list = transport::gather_list::of({view}, access_mode::read);
      if (list && expose(copy, std::move(*list))) {
        staged->set({});
        return send();
      }
    }
    // Nothing but cancelling withdraws the tensors before.
    end(fail(
      is_over() ? status{errc::cancelled, "the store was cancelled while a snapshot was taken"}
                : copied.within("taking a snapshot")));
  }

  void search() {
    find_model(
      core, group, request.spec.name, deadline,
      [self = shared_from_this()](const result<model_places>& found) {
        if (!found)
          return self->end(fail(found.error().within("storing " + self->request.spec.name)));
        self->places = *found;
        self->provider = found->home;
        self->request.by = found->by;
        // A provider that names a larger number than is taken must not stop stores elsewhere.
        self->request.version_after = 0;
        for (auto& copy : found->copies)
          self->request.version_after =
            std::clamp(copy.version, self->request.version_after, version_after_max);
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
        self->end(
          removed ? result<receipt>{stored}
                  : fail(removed.error().within(fmt::format(
                      "model {} is stored at provider {}, but an older version was not removed; "
                      "store it again",
                      stored.model, stored.provider))));
      });
  }
};

// Finds the layers of tensors that come in the order of the graph, as most do.
bool match_in_order(model_spec& spec, const model_graph& graph) {
  auto next = spec.tensors.tensors.begin();
  std::vector<std::uint32_t> found;
  found.reserve(spec.tensors.tensors.size());
  for (std::uint32_t i = 0; i < graph.layers().size(); ++i)
    for (auto& t : graph.layers()[i].tensors) {
      if (
        next == spec.tensors.tensors.end() || next->type != t.type || next->shape != t.shape ||
        next->name != tensor_name(graph.layers()[i], t))
        return false;
      ++next;
      found.push_back(i);
    }
  if (next != spec.tensors.tensors.end())
    return false;
  spec.tensor_layers = std::move(found);
  return true;
}

// Finds the layer of each tensor. The graph's tensors must be those of the layout.
status match_tensors(model_spec& spec, const model_graph& graph) {
  if (match_in_order(spec, graph))
    return {};
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
  call.graph = *known;
  auto& spec = call.request.spec;
  spec.graph = call.graph->encoded;
  for (auto& [id, description] : call.graph->descriptions) {
    if (!call.core->layers().find(id))
      if (auto decoded = decode<layer_description>(description, "a layer description"))
        call.core->layers().add(id, std::move(*decoded));
  }
  return match_tensors(spec, graph);
}

// A small payload travels in the message. Larger tensors are exposed where they lie. A snapshot
// gets a block for its copy, where there is room for one.
status offer_bytes(store_call& call, const std::vector<tensor_view>& tensors) {
  auto list = transport::gather_list::of(tensors, access_mode::read);
  if (!list)
    return list.error();
  auto bytes = list->size_bytes();
  if (list->on_host() && bytes <= call.core->where().eager_bytes_max) {
    call.request.eager.resize(bytes);
    list->read(
      0, reinterpret_cast<std::byte*>(call.request.eager.data()), bytes,
      transport::store_mode::cached);
    if (call.staged)
      call.staged->set({});
    return {};
  }
  if (call.staged && bytes > 0)
    if (auto staging = call.core->staging())
      if (auto block = staging->allocate(bytes, 64))
        call.block = {block->data, bytes, block->owner};
  call.expose(call.tensors, std::move(*list));
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
  if (auto bad = validate(spec.tensors); !bad.ok())
    return bad;
  if (auto bad = describe_graph(call, graph); !bad.ok())
    return bad;
  return offer_bytes(call, tensors);
}

} // namespace

pending_store begin_store(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  const model_graph& graph, std::vector<tensor_view> tensors, const store_options& options,
  store_from from, store_batch* batch) {
  auto provider = core->place_new(model, group);
  if (!provider)
    return failed_store(provider.error());
  auto call = std::make_shared<store_call>();
  call->core = core;
  call->group = group;
  call->provider = *provider;
  call->request.by = {group, 0};
  call->done = core->make_promise<receipt>();
  if (from == store_from::snapshot)
    call->staged = core->make_promise<void>();
  pending_store out{
    call->staged ? call->staged->get_future() : future<void>{}, call->done.get_future()};
  if (auto bad = prepare(*call, model, graph, tensors, options); !bad.ok())
    return failed_store(bad.within("storing " + model));
  call->deadline =
    batch ? batch->deadline_of(options.timeout) : core->deadline_after(options.timeout);
  call->request.checksums = options.checksums.value_or(core->entry(*provider).checksums);
  call->begin(batch);
  return out;
}

pending_store failed_store(const status& why) {
  return {ready_future<void>(fail(why)), ready_future<receipt>(fail(why))};
}

} // namespace millrace::runtime
