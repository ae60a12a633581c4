// Connections and proxies of a client.
#include <millrace/actors/wire/remote.hpp>
#include <millrace/runtime/client/calls/caller.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/storage/builtin.hpp>

#include <algorithm>

namespace millrace::runtime {

namespace {

// Names whose chains are remembered.
constexpr std::size_t chains_max = 64;

// The node at the address that a client was given, until it has said its name.
constexpr auto first_node = "";

const actors::node_entry* find_node(const actors::directory& where, const std::string& name) {
  for (auto& node : where.nodes)
    if (node.name == name)
      return &node;
  return nullptr;
}

// What older services do not say: one address a node, and nodes with providers only.
status complete(actors::directory& where) {
  for (auto& p : where.providers) {
    if (p.addresses.empty())
      p.addresses = {p.address};
    if (!find_node(where, p.node))
      where.nodes.push_back({p.node, p.addresses});
  }
  for (auto& node : where.nodes)
    if (node.addresses.empty())
      return {
        errc::protocol_error, "the service's directory names no address of node " + node.name};
  return {};
}

} // namespace

actors::directory directory_of(const config::settings& settings) {
  actors::directory where;
  where.node = settings.node.name;
  where.eager_bytes_max = settings.options.of<transport::fabric_options>().eager_bytes_max;
  for (auto& node : settings.nodes) {
    auto addresses = node.addresses();
    where.nodes.push_back({node.name, addresses});
    for (auto& p : node.providers) {
      auto kind = storage::bucket_called(p.bucket);
      where.providers.push_back(
        {p.name, node.name, addresses.front(), p.bucket, p.group, p.weight, p.checksums,
         kind && (*kind)->keeps_checkpoints, addresses});
    }
  }
  return where;
}

client_core::client_core(std::shared_ptr<engine> e, actors::directory where)
  : engine_(std::move(e)), where_(std::move(where)),
    layers_(engine_->settings().client.layer_cache_entries) {
  caller_ = caf::actor_cast<caf::strong_actor_ptr>(engine_->system().spawn<caller>());
  prepare_tables();
}

void client_core::prepare_tables() {
  stores_.resize(where_.providers.size());
  checkpoints_.resize(where_.providers.size());
  told_.clear();
  for (std::size_t i = 0; i < where_.providers.size(); ++i)
    told_.push_back(std::make_unique<told_layers>(engine_->settings().client.layer_cache_entries));
}

std::shared_ptr<client_core> client_core::of_node(
  std::shared_ptr<engine> e, actors::directory where, const local_actors& local) {
  std::shared_ptr<client_core> core{new client_core{std::move(e), std::move(where)}};
  for (std::size_t i = 0; i < core->where_.providers.size(); ++i) {
    auto& entry = core->where_.providers[i];
    if (entry.node != core->where_.node)
      continue;
    // A node that fails to start stops before it has all its providers.
    if (auto found = local.stores.find(entry.name); found != local.stores.end())
      core->stores_[i] = found->second;
    if (auto found = local.checkpoints.find(entry.name); found != local.checkpoints.end())
      core->checkpoints_[i] = found->second;
  }
  core->nodes_[core->where_.node] = local.node;
  return core;
}

std::shared_ptr<client_core> client_core::of_cluster(
  std::shared_ptr<engine> e, actors::directory where, const std::string& address) {
  std::shared_ptr<client_core> core{new client_core{std::move(e), std::move(where)}};
  core->first_address_ = address;
  return core;
}

client_core::~client_core() {
  status why{errc::cancelled, "the client was closed"};
  for (auto& [address, remote] : remotes_)
    remote->close(why);
  for (auto& proxy : proxies_)
    actors::end_actor(engine_->system(), proxy);
  actors::end_actor(engine_->system(), std::exchange(caller_, nullptr));
  proxies_.clear();
  stores_.clear();
  checkpoints_.clear();
  nodes_.clear();
  remotes_.clear();
  release(std::move(engine_));
}

void client_core::fetch_directory(completion<void> done) {
  ask<actors::node_actor, actors::directory_request, actors::directory>(
    node(first_node), {},
    [self = shared_from_this(), done = std::move(done)](result<actors::directory> where) {
      if (!where)
        return done(fail(where.error()));
      if (auto bad = complete(*where); !bad.ok())
        return done(fail(bad));
      self->learn(std::move(*where));
      done({});
    });
}

void client_core::learn(actors::directory where) {
  std::lock_guard guard{mutex_};
  where_ = std::move(where);
  prepare_tables();
  // The address that was given is the way to this node, whatever the node calls itself: there may be a tunnel between,
  // and a service of the same name on this host.
  remotes_[where_.node] = remotes_[first_node];
  nodes_[where_.node] = nodes_[first_node];
}

std::shared_ptr<actors::remote_node> client_core::remote(const std::string& node) {
  auto& r = remotes_[node];
  if (!r) {
    auto* known = find_node(where_, node);
    r = actors::remote_node::create(
      engine_->loop(), engine_->fabric(),
      engine_->link_options(known ? *known : actors::node_entry{{}, {first_address_}}));
  }
  return r;
}

actors::tensor_store_actor client_core::store(std::size_t index) {
  std::lock_guard guard{mutex_};
  auto& s = stores_[index];
  if (!s) {
    auto& entry = where_.providers[index];
    s = actors::spawn_remote_store(engine_->system(), remote(entry.node), entry.name, timeout_ms());
    proxies_.push_back(caf::actor_cast<caf::strong_actor_ptr>(s));
  }
  return s;
}

actors::checkpoint_manager_actor client_core::checkpoints(std::size_t index) {
  std::lock_guard guard{mutex_};
  auto& c = checkpoints_[index];
  if (!c) {
    auto& entry = where_.providers[index];
    c = actors::spawn_remote_checkpoints(
      engine_->system(), remote(entry.node), entry.name, timeout_ms());
    proxies_.push_back(caf::actor_cast<caf::strong_actor_ptr>(c));
  }
  return c;
}

std::uint32_t client_core::timeout_ms() const {
  return static_cast<std::uint32_t>(engine_->settings().client.request_timeout_ms);
}

actors::node_actor client_core::node(const std::string& name) {
  std::lock_guard guard{mutex_};
  auto& n = nodes_[name];
  if (!n) {
    n = actors::spawn_remote_node_actor(engine_->system(), remote(name), timeout_ms());
    proxies_.push_back(caf::actor_cast<caf::strong_actor_ptr>(n));
  }
  return n;
}

std::shared_ptr<const model_graph> client_core::chain_for(
  const std::string& model, const layout& tensors) {
  {
    std::lock_guard guard{mutex_};
    auto found = chains_.find(model);
    if (found != chains_.end() && found->second.first == tensors)
      return found->second.second;
  }
  auto graph = std::make_shared<const model_graph>(model_graph::chain_of(tensors));
  std::lock_guard guard{mutex_};
  if (chains_.size() >= chains_max)
    chains_.clear();
  chains_[model] = {tensors, graph};
  return graph;
}

result<std::shared_ptr<memory_source>> client_core::staging() {
  std::lock_guard guard{mutex_};
  if (!staging_) {
    auto made = engine_->fabric()->make_memory(
      {.name = "millrace.client", .size_bytes = engine_->settings().client.staging_bytes},
      transport::staging_mode::pinned);
    if (!made)
      return fail(made.error());
    staging_ = std::move(*made);
  }
  return staging_;
}

} // namespace millrace::runtime
