// Starts and stops a service, part by part.
#include <millrace/actors/broadcast/group_keeper.hpp>
#include <millrace/actors/loader/stream_server.hpp>
#include <millrace/actors/node/node_actor.hpp>
#include <millrace/actors/wire/session.hpp>
#include <millrace/config/place.hpp>
#include <millrace/config/users.hpp>
#include <millrace/core/identity.hpp>
#include <millrace/core/log.hpp>
#include <millrace/net/network_options.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/data_memory.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/runtime/node/provider.hpp>
#include <millrace/runtime/node/side_thread.hpp>
#include <millrace/runtime/node/stall_watch.hpp>
#include <millrace/storage/builtin.hpp>
#include <millrace/version.hpp>

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

namespace millrace {

namespace {

using runtime::engine;

// A thread that has just answered may still have the last reference to a bucket. After
// this, another node finds the same files closed. A client of this process may keep them longer.
void await_end_of(const std::vector<std::weak_ptr<void>>& storage) {
  auto deadline = steady_clock::now() + std::chrono::milliseconds{500};
  auto open = [](auto& one) { return !one.expired(); };
  while (std::ranges::any_of(storage, open) && steady_clock::now() < deadline)
    sleep_for(std::chrono::milliseconds{1});
}

// The loop owns what it runs later, and that must not own the loop. Clients may keep the loop after
// the node has stopped.
void run_repeatedly(
  const std::weak_ptr<net::io_loop>& loop, const std::weak_ptr<void>& served,
  std::uint32_t interval_ms, std::function<void()> f) {
  auto running = loop.lock();
  if (!running)
    return;
  running->run_after(interval_ms, [loop, served, interval_ms, f = std::move(f)] {
    if (served.expired())
      return;
    f();
    run_repeatedly(loop, served, interval_ms, f);
  });
}

} // namespace

struct node::state {
  explicit state(config::settings s) : settings(std::move(s)) {}

  const process_mark made_in;
  config::settings settings;
  std::shared_ptr<engine> runs_on;
  std::unique_ptr<runtime::node_memory> memory;
  std::unique_ptr<runtime::stall_watch> stalls; // null: nothing watches the loop
  std::vector<std::unique_ptr<runtime::provider>> providers;
  std::map<std::string, status> down;
  actors::data_memory data; // without a pool: the node has no data server
  std::shared_ptr<actors::service_table> services = std::make_shared<actors::service_table>();
  std::shared_ptr<actors::connection_table> connections =
    std::make_shared<actors::connection_table>(
      settings.limits.requests_max, settings.limits.requests_bytes_max,
      settings.options.of<net::network_options>().channel.frame_bytes_max);
  std::shared_ptr<lent_places> buffers =
    net::buffers_of(settings.options.of<net::network_options>().listener);
  std::vector<std::string> addresses; // as others reach it
  std::vector<std::shared_ptr<net::listener>> listeners;
  // Read on the loop: newcomers are refused until the node serves.
  std::shared_ptr<std::atomic<bool>> starting = std::make_shared<std::atomic<bool>>(true);
  time_point started = steady_clock::now();
  std::shared_ptr<bool> served = std::make_shared<bool>(); // what `repeat` calls ends with it
  bool stopped = false;

  // What the node's actor sees of this. It may still run on another thread once it was ended.
  struct view {
    std::mutex mutex;
    const state* of = nullptr; // null: the node has stopped
  };
  std::shared_ptr<view> seen = std::make_shared<view>();

  status open_providers();
  status open_data();
  actors::supervised_part start_data_server() const;
  actors::supervised_part start_stream_server() const;
  actors::supervised_part start_group_keeper() const;
  status open_sockets();
  void watch_loop();
  void spawn_self();
  node_status status_now() const;
  std::uint64_t in_flight();
  void stop();
};

// A damaged provider does not take the whole ones along, unless the settings say so.
status node::state::open_providers() {
  status all_down; // every one that is
  for (auto& p : settings.providers) {
    auto opened = runtime::provider::open(p, runs_on, *memory, services);
    if (opened) {
      providers.push_back(std::move(*opened));
      continue;
    }
    auto why = opened.error().within("provider " + p.name);
    all_down =
      all_down.ok() ? why : status{all_down.code(), "{}; {}", all_down.detail(), why.to_string()};
    services->add_down(
      p.name, {errc::unavailable, "provider {} is down: {}", p.name, opened.error().to_string()});
    down.emplace(p.name, opened.error());
  }
  auto required = settings.node.require;
  auto starts = required == config::required_providers::none ||
    (required == config::required_providers::any && !providers.empty());
  if (!all_down.ok() && !starts)
    return all_down;
  for (auto& [name, why] : down)
    log().error(
      "a provider is down, the node starts without it provider={} why=\"{}\"", name,
      why.to_string());
  for (auto& warning : warnings_about(settings.providers))
    log().warn("{}", warning);
  if (!down.empty() && providers.empty())
    log().error("no provider could be opened, the node serves nothing node={}", settings.node.name);
  return {};
}

status node::state::open_data() {
  auto& options = settings.options.of<actors::data_options>();
  if (options.capacity_bytes == 0)
    return {};
  auto made = runtime::make_data_memory(options, *memory);
  if (made)
    data = std::move(*made);
  return made ? status{} : made.error().within("the data server (data.capacity)");
}

namespace {

// A server of the node itself, which its node starts again after a failure. `what`: its name in the
// log.
template <class Service, class Spawn, class Deps>
actors::supervised_part start_server(
  engine& e, const std::shared_ptr<actors::service_table>& services, const char* what,
  const char* target, Spawn spawn, Deps deps) {
  // The engine ends after the actors.
  auto start = [&e, services, target, spawn, deps = std::move(deps)] {
    auto actor = e.adopt(spawn(e.system(), deps));
    services->add<Service>(target, actor);
    return caf::actor_cast<caf::actor_addr>(actor);
  };
  auto take_down = [services, target](const status& why) { services->add_down(target, why); };
  return {what, start(), start, take_down};
}

} // namespace

actors::supervised_part node::state::start_data_server() const {
  return start_server<actors::data_service>(
    *runs_on, services, "the data server", actors::data_server_of_node, actors::spawn_data_server,
    actors::data_server_deps{
      settings.node.name + "/data", data, runs_on->fabric(), runtime::limits_of(settings)});
}

actors::supervised_part node::state::start_stream_server() const {
  return start_server<actors::stream_service>(
    *runs_on, services, "the stream server", actors::stream_server_of_node,
    actors::spawn_stream_server,
    actors::data_server_deps{
      settings.node.name + "/streams", data, runs_on->fabric(), runtime::limits_of(settings)});
}

actors::supervised_part node::state::start_group_keeper() const {
  auto& options = settings.options.of<actors::group_options>();
  return start_server<actors::group_service>(
    *runs_on, services, "the group keeper", actors::group_keeper_of_node,
    actors::spawn_group_keeper,
    actors::group_keeper_deps{
      settings.node.name + "/groups", options, actors::places_for_rings(options), runs_on->fabric(),
      runtime::limits_of(settings)});
}

node_status node::state::status_now() const {
  node_status s;
  s.node = settings.node.name;
  s.address = addresses.front();
  s.addresses = addresses;
  s.version = version;
  s.pid = this_process();
  s.uptime_ms = static_cast<std::uint64_t>(
    std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - started).count());
  s.connections = connections->size();
  auto requests = connections->requests();
  s.stalls = stalls ? stalls->stalls() : 0;
  s.requests = requests.count;
  s.requests_bytes = requests.size_bytes;
  s.buffers_bytes = buffers->taken();
  auto& staging = memory->staging_in_use();
  s.staging_capacity_bytes = staging ? staging->capacity_bytes() : 0;
  s.staging_used_bytes = staging ? staging->used_bytes() : 0;
  s.staging = memory->report();
  if (data.pool) {
    s.data = data.pool->stats();
    auto leases = data.leases->taken();
    // Streams have memory of the pool that is never published.
    s.data.streams = data.streams->streams;
    s.data.samples_appended = data.streams->appended;
    s.data.samples_given = data.streams->given;
    s.data.filling -= std::min<std::uint64_t>(s.data.filling, s.data.streams);
    s.data.joins = data.joins->all;
    auto others = s.data.filling + data.joins->now + data.streams->leases;
    s.data.readers = leases - std::min(leases, others);
  }
  s.paths = runs_on->fabric()->paths();
  s.reports = runs_on->fabric()->reports();
  for (auto& p : settings.providers)
    if (auto why = down.find(p.name); why != down.end()) {
      auto& out = s.providers.emplace_back();
      out.name = p.name;
      if (auto kind = storage::bucket_called(p.bucket))
        out.kind = (*kind)->section.keys.name;
      out.group = p.group;
      out.down = why->second.to_string();
    }
  return s;
}

void node::state::watch_loop() {
  auto after = std::chrono::milliseconds{settings.node.stall_warning_ms};
  if (after.count() > 0 && runs_on->loop()->doing())
    stalls = std::make_unique<runtime::stall_watch>(settings.node.name, runs_on->loop(), after);
}

void node::state::spawn_self() {
  actors::node_actor_deps deps;
  deps.parts.push_back(memory->start_manager());
  deps.parts.push_back(start_group_keeper());
  if (data.pool) {
    deps.parts.push_back(start_data_server());
    deps.parts.push_back(start_stream_server());
  }
  deps.who_is_where = runtime::directory_of(settings);
  for (auto& entry : deps.who_is_where.providers)
    for (auto& p : providers)
      if (entry.name == p->name())
        entry.id = p->id();
  seen->of = this;
  deps.own_state = [seen = seen] {
    std::lock_guard guard{seen->mutex};
    if (seen->of)
      return seen->of->status_now();
    node_status gone;
    gone.down = "the node was stopped";
    return gone;
  };
  for (auto& p : providers)
    std::ranges::copy(p->actors(), std::back_inserter(deps.actors));
  deps.restarts.restarts_max = settings.node.restarts_max;
  deps.take_down = [services = services](const std::string& target, const status& why) {
    services->add_down(target, why);
  };
  services->add<actors::node_service>(
    actors::node_itself,
    runs_on->adopt(actors::spawn_node_actor(runs_on->system(), std::move(deps))));
}

// Opening providers takes long. Whoever connects meanwhile is told that the node is there.
status node::state::open_sockets() {
  auto uids = config::uids_of("node.allow_users", settings.node.allow_users);
  if (!uids)
    return uids.error();
  auto where = settings.options.of<net::network_options>().listener;
  where.socket_mode = settings.node.socket_mode;
  where.allow_uids = std::move(*uids);
  where.connections = net::shares_of(where);
  where.streams = runs_on->fabric()->stream_acceptor();
  auto options = runs_on->channel_options();
  options.local_name = settings.node.name;
  options.buffers = buffers;
  for (auto& address : settings.node.listen) {
    where.address = address;
    auto opened = runs_on->network().listen(
      runs_on->loop(), where, options,
      [&system = runs_on->system(), fabric = runs_on->fabric(), services = services,
       table = connections, starting = starting, name = settings.node.name](
        const net::peer_info&) -> result<std::shared_ptr<net::channel_handler>> {
        if (*starting)
          return fail(net::starting(name));
        return actors::make_session(system, fabric, services, table);
      });
    if (!opened)
      return opened.error();
    listeners.push_back(std::move(*opened));
  }
  return {};
}

// Counts the operations that clients still wait for. A provider that does not answer counts for
// none.
std::uint64_t node::state::in_flight() {
  if (!services->find<actors::node_service>(actors::node_itself))
    return 0; // it did not come to that
  auto core = runtime::client_core::of_node(runs_on, runtime::directory_of(settings), services);
  auto answer = core->ask_node(settings.node.name, actors::node_status_request{});
  std::uint64_t total = 0;
  if (answer.wait_for(std::chrono::seconds{1}) && answer.result())
    for (auto& p : answer.result()->providers)
      total += p.in_flight + p.queued + p.checkpoints.saves_in_flight + p.checkpoints.saves_queued;
  return total;
}

void node::state::stop() {
  if (std::exchange(stopped, true))
    return;
  auto deadline =
    steady_clock::now() + std::chrono::milliseconds{settings.limits.shutdown_timeout_ms};
  connections->refuse();
  for (auto& l : listeners)
    l->stop();
  while (!providers.empty() && steady_clock::now() < deadline && in_flight() > 0)
    sleep_for(std::chrono::milliseconds{20});
  connections->close_all({errc::unavailable, "node {} was stopped", settings.node.name}, 1000);
  for (auto& p : providers)
    if (auto bad = p->close(static_cast<std::uint32_t>(settings.limits.shutdown_timeout_ms));
        !bad.ok())
      log().warn("provider not closed in order provider={} why=\"{}\"", p->name(), bad.to_string());
  std::vector<std::weak_ptr<void>> storage;
  for (auto& p : providers)
    std::ranges::move(p->storage(), std::back_inserter(storage));
  listeners.clear();
  runs_on->end_actors();
  {
    std::lock_guard guard{seen->mutex};
    seen->of = nullptr;
  }
  memory->refuse_waiting({errc::unavailable, "node {} was stopped", settings.node.name});
  stalls.reset();
  served.reset();
  services.reset();
  providers.clear();
  data = {};
  memory.reset();
  runtime::release(std::exchange(runs_on, nullptr));
  await_end_of(storage);
}

node::node(std::shared_ptr<state> s) : state_(std::move(s)) {}
node::node(node&&) noexcept = default;
node& node::operator=(node&& other) noexcept {
  stop();
  state_ = std::move(other.state_);
  return *this;
}
node::~node() { stop(); }

void node::repeat(std::uint32_t interval_ms, std::function<void()> f) {
  if (state_ && state_->made_in.is_here() && state_->runs_on)
    run_repeatedly(state_->runs_on->loop(), state_->served, interval_ms, std::move(f));
}

void node::stop() {
  if (state_ && state_->made_in.is_here())
    state_->stop();
}

future<void> node::stop_async() {
  if (state_ && !state_->made_in.is_here())
    return ready_future<void>(fail(
      errc::unavailable, "this node belongs to process {}; start one here",
      state_->made_in.process()));
  promise<void> done;
  runtime::run_aside([done, ends = std::move(state_)] {
    if (ends)
      ends->stop();
    done.set({});
  });
  return done.get_future();
}

result<node> node::start(const config::settings& settings) {
  auto s = kept_from_forks(new state{settings});
  s->addresses =
    config::cluster_node{settings.node.name, settings.node.listen, {}, settings.node.host}
      .addresses();
  if (s->addresses.empty())
    return fail(errc::invalid_argument, "node {} has no address", settings.node.name);
  auto started = engine::start(settings, runtime::engine_role::node);
  if (!started)
    return fail(started.error());
  s->runs_on = std::move(*started);
  s->memory = std::make_unique<runtime::node_memory>(s->runs_on);
  node n{std::move(s)};
  if (auto bad = n.state_->open_sockets(); !bad.ok())
    return fail(bad.within("node " + settings.node.name));
  if (auto bad = n.state_->open_providers(); !bad.ok())
    return fail(std::move(bad));
  if (auto bad = n.state_->open_data(); !bad.ok())
    return fail(std::move(bad));
  if (auto bad = n.state_->memory->check_with_peers(); !bad.ok())
    log().warn("{}", bad.detail());
  n.state_->watch_loop();
  n.state_->spawn_self();
  *n.state_->starting = false;
  return n;
}

namespace {

result<config::settings> settings_in(const std::string& path, const std::string& name) {
  auto loaded = load_configuration(path);
  return loaded ? config::pick_node(*loaded, name, config::surroundings::of_this_process())
                : std::move(loaded);
}

// Starts a node of the settings that `settings()` gives, on another thread.
template <class F>
future<std::shared_ptr<node>> start_aside(F settings) {
  promise<std::shared_ptr<node>> done;
  runtime::run_aside([done, settings = std::move(settings)] {
    try {
      auto started = settings().and_then([](auto&& s) { return node::start(s); });
      done.set(
        std::move(started).map([](node&& n) { return std::make_shared<node>(std::move(n)); }));
    } catch (const std::bad_alloc&) {
      done.set(fail(errc::no_space, "starting a node: this process has no memory left"));
    } catch (const std::exception& e) {
      done.set(fail(errc::internal, "starting a node: {}", e.what()));
    }
  });
  return done.get_future();
}

} // namespace

future<std::shared_ptr<node>> node::start_async(config::settings settings) {
  return start_aside([s = std::move(settings)] { return result<config::settings>{s}; });
}

future<std::shared_ptr<node>> node::embed_async(std::string path, std::string name) {
  return start_aside(
    [path = std::move(path), name = std::move(name)] { return settings_in(path, name); });
}

node node::embed(const config::settings& settings) {
  auto started = start(settings);
  if (!started)
    throw error{started.error()};
  return std::move(*started);
}

node node::embed(const std::string& path, const std::string& name) {
  auto settings = settings_in(path, name);
  if (!settings)
    throw error{settings.error()};
  return embed(*settings);
}

class client node::client() const {
  return millrace::client{runtime::client_core::of_node(
    state_->runs_on, runtime::directory_of(state_->settings), state_->services)};
}

const std::map<std::string, status>& node::down() const noexcept { return state_->down; }

const std::string& node::address() const noexcept { return state_->addresses.front(); }
const std::vector<std::string>& node::addresses() const noexcept { return state_->addresses; }

} // namespace millrace
