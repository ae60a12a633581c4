// Opening connections, and the questions that concern whole nodes.
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/shard_state.hpp>
#include <millrace/runtime/client/client.hpp>

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
