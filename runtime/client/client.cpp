// Opening connections, and the questions that concern whole nodes.
#include <millrace/actors/loader/data_server.hpp>
#include <millrace/actors/loader/stream_server.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/listing.hpp>
#include <millrace/runtime/client/calls/shard_state.hpp>
#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/client/weights.hpp>

namespace millrace {

namespace {

status with_address(const status& why, const std::string& address) {
  auto named = why.detail().find(address) != std::string::npos;
  return named ? why : why.within("connecting to " + address);
}

} // namespace

// The waiting thread alone keeps the client: its last copy then ends where the program drops it.
result<client> client::open(const std::string& address, const config::settings& settings) {
  auto engine = runtime::engine::start(settings, runtime::engine_role::client);
  if (!engine)
    return fail(engine.error());
  auto core = runtime::client_core::of_cluster(std::move(*engine), {}, address);
  auto done = core->make_promise<void>();
  core->fetch_directory([done](result<void> r) { done.set(std::move(r)); });
  auto outcome = done.get_future().result();
  if (!outcome)
    return fail(with_address(outcome.error(), address));
  return client{std::move(core)};
}

future<client> client::open_async(const std::string& address, const config::settings& settings) {
  auto engine = runtime::engine::start(settings, runtime::engine_role::client);
  if (!engine)
    return ready_future<client>(fail(engine.error()));
  auto core = runtime::client_core::of_cluster(std::move(*engine), {}, address);
  auto done = core->make_promise<client>();
  core->fetch_directory([done, core, address](const result<void>& outcome) {
    done.set(outcome ? result<client>{client{core}} : fail(with_address(outcome.error(), address)));
  });
  return done.get_future();
}

client client::connect(const std::string& address, const config::settings& settings) {
  auto opened = open(address, settings);
  if (!opened)
    throw error{opened.error()};
  return std::move(*opened);
}

result<client> client::of(const config::settings& settings) {
  auto engine = runtime::engine::start(settings, runtime::engine_role::client);
  if (!engine)
    return fail(engine.error());
  return client{
    runtime::client_core::of_cluster(std::move(*engine), runtime::directory_of(settings), {})};
}

class repository client::repository(const std::string& group) const {
  return {core_, group};
}

class working_set client::working_set(const std::string& name) const {
  return {core_, name};
}

class stream client::stream(const std::string& name) const {
  return {core_, name};
}

namespace {

// Lists what the data servers of all nodes keep. `ask` gets the name of a node, and the name after
// which the page begins.
template <class Item>
future<listed<Item>> list_of_data_servers(
  const std::shared_ptr<runtime::client_core>& core,
  std::function<
    void(const std::string&, const std::string&, completion<runtime::listing_page<Item>>)>
    ask,
  const std::string& (*name_of)(const Item&)) {
  if (auto refused = core->refused<listed<Item>>())
    return *refused;
  std::vector<std::size_t> numbers;
  std::vector<std::string> names;
  auto& nodes = core->where().nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].data_bytes > 0) {
      numbers.push_back(i);
      names.push_back(nodes[i].name);
    }
  if (numbers.empty())
    return ready_future<listed<Item>>(
      fail(errc::not_found, "no node keeps working sets; set data.capacity in the file of a node"));
  auto ask_number = [core, ask = std::move(ask)](
                      std::size_t node, const std::string& after,
                      const completion<runtime::listing_page<Item>>& answer) {
    ask(core->where().nodes[node].name, after, answer);
  };
  return runtime::listing<Item>::begin(
    core, std::move(numbers), std::move(names), ask_number, name_of);
}

} // namespace

future<listed<set_info>> client::working_sets(const std::string& prefix) const {
  using page = runtime::listing_page<set_info>;
  return list_of_data_servers<set_info>(
    core_,
    [core = core_,
     prefix](const std::string& node, const std::string& after, const completion<page>& answer) {
      core
        ->ask_node<actors::data_service>(
          node, actors::list_sets_request{prefix, after}, actors::data_server_of_node)
        .chain([answer](const result<actors::set_list>& r) {
          if (!r)
            return answer(fail(r.error()));
          page out{{}, !r->sets.empty()};
          for (auto& set : r->sets) {
            auto bad = validate(set);
            auto whole = whole_of(set);
            if (!bad.ok() || !whole)
              return answer(fail(errc::protocol_error, (bad.ok() ? whole.error() : bad).detail()));
            out.items.push_back(std::move(*whole));
          }
          answer(std::move(out));
        });
    },
    [](const set_info& set) -> const std::string& { return set.name; });
}

future<listed<stream_status>> client::streams(const std::string& prefix) const {
  using page = runtime::listing_page<stream_status>;
  return list_of_data_servers<stream_status>(
    core_,
    [core = core_,
     prefix](const std::string& node, const std::string& after, const completion<page>& answer) {
      core
        ->ask_node<actors::stream_service>(
          node, actors::list_streams_request{prefix, after}, actors::stream_server_of_node)
        .chain([answer](const result<actors::stream_list>& r) {
          for (std::size_t i = 0; r && i < r->streams.size(); ++i)
            if (auto bad = validate(r->streams[i].options); !bad.ok())
              return answer(fail(errc::protocol_error, bad.detail()));
          answer(r.map([](auto& all) { return page{all.streams, !all.streams.empty()}; }));
        });
    },
    [](const stream_status& one) -> const std::string& { return one.name; });
}

future<class checkpointer> client::checkpointer(
  const checkpoint_options& options, std::vector<tensor_view> tensors) const {
  using class_type = class checkpointer;
  if (auto refused = core_->refused<class_type>())
    return *refused;
  auto state = runtime::shard_state::make(core_, options, std::move(tensors));
  if (!state)
    return ready_future<class_type>(fail(state.error()));
  auto done = core_->make_promise<class_type>();
  // The caller does not have the future yet, so it cannot have cancelled.
  static_cast<void>(done.on_cancel([weak = std::weak_ptr{*state}] {
    if (auto s = weak.lock())
      s->give_up();
  }));
  (*state)->attach([done, s = *state](const result<void>& attached) {
    if (attached)
      done.set(class_type{s});
    else
      done.set(fail(attached.error()));
  });
  return done.get_future();
}

class checkpoints client::checkpoints(const std::string& group) const {
  return {core_, group};
}

class weights client::weights(const std::string& name, const std::string& group) const {
  return {core_, name, group};
}

std::vector<provider_entry> client::providers() const { return core_->where().providers; }

std::vector<node_entry> client::nodes() const { return core_->where().nodes; }

void client::invalidate(const void* data, std::uint64_t size_bytes) const {
  if (core_->refusal().ok())
    core_->runs_on()->fabric()->invalidate(data, size_bytes);
}

future<std::vector<result<node_status>>> client::status() const {
  if (auto refused = core_->refused<std::vector<result<node_status>>>())
    return *refused;
  std::vector<future<node_status>> asked;
  for (auto& node : core_->where().nodes)
    asked.push_back(core_->ask_node(node.name, actors::node_status_request{}));
  return when_all(asked);
}

} // namespace millrace
