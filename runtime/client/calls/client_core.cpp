// Connections of a client, and what it knows of the cluster.
#include <millrace/actors/loader/data_options.hpp>
#include <millrace/core/background_thread.hpp>
#include <millrace/core/log.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/placement.hpp>
#include <millrace/storage/builtin.hpp>

#include <algorithm>
#include <limits>
#include <system_error>

namespace millrace::runtime {

namespace {

// The number of names whose chains are remembered.
constexpr std::size_t chains_max = 64;

// The key of the node at the address given to the client, until the node has said its name.
constexpr auto first_node = "";

const node_entry* find_node(const actors::directory& where, const std::string& name) {
  for (auto& node : where.nodes)
    if (node.name == name)
      return &node;
  return nullptr;
}

// Fills in what older services leave out: they send one address per node, and only nodes with
// providers.
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
    where.nodes.push_back(
      {node.name, addresses, settings.options.of<actors::data_options>().capacity_bytes});
    for (auto& p : node.providers) {
      auto kind = storage::bucket_called(p.bucket);
      where.providers.push_back(
        {p.name, node.name, addresses.front(),
         kind ? std::string{(*kind)->section.keys.name} : p.bucket, p.group, p.weight, p.checksums,
         kind && (*kind)->keeps_checkpoints, addresses, p.id});
    }
  }
  return where;
}

client_core::client_core(std::shared_ptr<engine> e, actors::directory where)
  : engine_(std::move(e)), where_(std::move(where)),
    layers_(engine_->settings().client.layer_cache_entries),
    models_(engine_->settings().client.layer_cache_entries),
    reads_(std::make_shared<remote_reads>(
      engine_->fabric(), engine_->settings().options.of<actors::read_options>())) {
  prepare_tables();
  if (engine_->made_in().is_here())
    caller_ = caf::actor_cast<caf::strong_actor_ptr>(engine_->system().spawn<actors::caller>());
}

void client_core::prepare_tables() {
  known_.clear();
  for (auto& entry : where_.providers)
    add(entry);
}

std::size_t client_core::number_of(const group_member& member, const std::string& group) {
  std::lock_guard guard{mutex_};
  if (auto found = found_.find(member.id); found != found_.end())
    return found->second;
  if (auto known = known_number(member.name, member.node))
    return *known;
  provider_entry entry;
  entry.name = member.name;
  entry.node = member.node;
  entry.group = group;
  entry.weight = member.weight;
  entry.addresses = member.addresses;
  entry.id = member.id;
  return add(std::move(entry));
}

std::size_t client_core::number_of(const provider_entry& entry) {
  std::lock_guard guard{mutex_};
  auto known = known_number(entry.name, entry.node);
  return known ? *known : add(entry);
}

std::optional<std::size_t> client_core::known_number(
  const std::string& name, const std::string& node) const {
  for (std::size_t i = 0; i < known_.size(); ++i)
    if (known_[i].entry.name == name && known_[i].entry.node == node)
      return i;
  return {};
}

std::size_t client_core::add(provider_entry entry) {
  known_.emplace_back(std::move(entry), engine_->settings().client.layer_cache_entries);
  return known_.size() - 1;
}

void client_core::ask_nodes(
  const std::set<std::string>& names, time_point until,
  completion<std::vector<actors::directory>> done) {
  auto now = steady_clock::now();
  until = std::clamp(until, now, now + std::chrono::milliseconds{connect_timeout_ms()});
  auto timeout_ms = std::max(left_ms(until), 1u); // 0 names no time
  std::vector<future<actors::directory>> asked;
  asked.reserve(names.size());
  for (auto& name : names)
    asked.push_back(ask_node(name, actors::directory_request{0, timeout_ms}));
  auto over = std::make_shared<promise<void>>();
  over->get_future().chain(
    [self = shared_from_this(), asked, done = std::move(done)](const result<void>&) {
      std::vector<actors::directory> known;
      for (auto& answer : asked)
        if (answer.ready())
          if (auto where = answer.result().value_or(actors::directory{}); complete(where).ok())
            if (!where.providers.empty())
              known.push_back(std::move(where));
      self->learn_ids(known);
      if (known.empty())
        known.push_back(self->where_);
      done(std::move(known));
    });
  when_all(asked).chain([over](const auto&) { over->set({}); });
  // A connection may take longer than the request, see `client.connect_timeout`.
  at(until, [weak = std::weak_ptr{over}] {
    if (auto waits = weak.lock())
      waits->set({});
  });
}

// An id that two providers have is of neither: the search says so.
void client_core::learn_ids(const std::vector<actors::directory>& answers) {
  std::map<std::string, std::set<std::size_t>> by_id;
  for (auto& where : answers)
    for (auto& p : where.providers)
      if (auto number = number_of(p); p.node == where.node && !p.id.empty())
        by_id[p.id].insert(number);
  std::lock_guard guard{mutex_};
  for (auto& [id, numbers] : by_id)
    if (numbers.size() == 1)
      found_[id] = *numbers.begin();
    else
      found_.erase(id);
}

const provider_entry& client_core::entry(std::size_t provider) {
  std::lock_guard guard{mutex_};
  return known_[provider].entry;
}

told_layers& client_core::told(std::size_t provider) {
  std::lock_guard guard{mutex_};
  return known_[provider].told;
}

void client_core::learn_view(const std::string& group, const group_view& view) {
  std::lock_guard guard{mutex_};
  auto& known = views_[group];
  if (known.number <= view.number)
    known = view;
}

void client_core::remember_window(const std::string& set, open_options files) {
  constexpr std::size_t windows_max = 1024;
  std::lock_guard guard{mutex_};
  std::erase_if(windows_, [&](auto& one) { return one.first == set; });
  windows_.emplace_back(set, std::move(files));
  if (windows_.size() > windows_max)
    windows_.pop_front();
}

void client_core::forget_window(const std::string& set) {
  std::lock_guard guard{mutex_};
  std::erase_if(windows_, [&](auto& one) { return one.first == set; });
}

open_options client_core::window_files(const std::string& set) {
  std::lock_guard guard{mutex_};
  auto known = std::ranges::find_if(windows_, [&](auto& one) { return one.first == set; });
  return known == windows_.end() ? open_options{} : known->second;
}

group_view client_core::known_view(const std::string& group) {
  std::lock_guard guard{mutex_};
  auto known = views_.find(group);
  return known == views_.end() ? group_view{} : known->second;
}

result<std::size_t> client_core::place_now(const std::string& model, const std::string& group) {
  auto view = known_view(group);
  if (auto* home = home_of(model, view))
    return number_of(*home, group);
  auto placed = place(model, group, where_.providers);
  // Providers may keep models of a group that none of them is in any more. Each can be asked for
  // its views, and leads to the others.
  return placed || where_.providers.empty() ? placed : 0;
}

result<std::size_t> client_core::place_new(const std::string& model, const std::string& group) {
  auto is_there =
    std::ranges::find(where_.providers, group, &provider_entry::group) != where_.providers.end();
  return is_there ? place_now(model, group) : place(model, group, where_.providers);
}

std::shared_ptr<client_core> client_core::of_node(
  std::shared_ptr<engine> e, actors::directory where,
  std::shared_ptr<const actors::service_table> here) {
  auto mark = e->made_in();
  auto core = kept_from_forks(new client_core{std::move(e), std::move(where)}, mark);
  core->here_ = std::move(here);
  return opened(std::move(core));
}

std::shared_ptr<client_core> client_core::of_cluster(
  std::shared_ptr<engine> e, actors::directory where, const std::string& address) {
  auto mark = e->made_in();
  auto core = kept_from_forks(new client_core{std::move(e), std::move(where)}, mark);
  core->first_address_ = address;
  return opened(std::move(core));
}

std::shared_ptr<client_core> client_core::opened(std::shared_ptr<client_core> core) {
  struct held {
    std::shared_ptr<client_core> core;
    explicit held(std::shared_ptr<client_core> c) : core(std::move(c)) {}
    ~held() { core->close(); }
    held(const held&) = delete;
    held& operator=(const held&) = delete;
  };
  auto* at = core.get();
  return {std::make_shared<held>(std::move(core)), at};
}

// Most clients have nothing to end, and are destroyed by the thread that drops them.
void client_core::close() {
  if (!refusal().ok())
    return;
  std::unique_lock lock{mutex_};
  auto ends = std::exchange(ends_when_closed_, {});
  lock.unlock();
  if (!ends.empty())
    run([self = shared_from_this(), ends = std::move(ends)] {
      for (auto& [number, end] : ends)
        end();
    });
}

std::uint64_t client_core::when_closed(std::function<void()> end) {
  std::lock_guard guard{mutex_};
  ends_when_closed_.emplace(++last_end_, std::move(end));
  return last_end_;
}

void client_core::forget_closing(std::uint64_t number) {
  std::lock_guard guard{mutex_};
  ends_when_closed_.erase(number);
}

client_core::~client_core() {
  if (makes_staging_.joinable())
    makes_staging_.join();
  status why{errc::cancelled, "the client was closed"};
  for (auto& [address, remote] : remotes_)
    remote->close(why);
  actors::end_actor(engine_->system(), std::exchange(caller_, nullptr));
  here_.reset();
  known_.clear();
  remotes_.clear();
  release(std::move(engine_));
}

status client_core::refusal() const {
  auto& mark = engine_->made_in();
  if (mark.is_here())
    return {};
  return {errc::unavailable, "this client belongs to process {}; open one here", mark.process()};
}

void client_core::fetch_directory(completion<void> done) {
  fetch_directory(
    steady_clock::now() + std::chrono::milliseconds{connect_timeout_ms()}, std::move(done));
}

void client_core::fetch_directory(time_point deadline, completion<void> done) {
  ask_node(first_node, actors::directory_request{})
    .chain([self = shared_from_this(), deadline,
            done = std::move(done)](result<actors::directory> where) {
      auto again = steady_clock::now() +
        std::chrono::milliseconds{self->engine_->settings().client.reconnect_backoff_min_ms};
      if (!where && net::is_starting(where.error()) && again < deadline)
        return self->at(again, [self, deadline, done] { self->fetch_directory(deadline, done); });
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
  // The address given leads to this node, whatever the node calls itself. There may be a tunnel
  // between, and a service of the same name on this host.
  remotes_[where_.node] = remotes_[first_node];
}

std::shared_ptr<actors::remote_node> client_core::remote(const std::string& node) {
  std::lock_guard guard{mutex_};
  return remote_of(node);
}

// Called with `mutex_` held.
std::shared_ptr<actors::remote_node> client_core::remote_of(const std::string& node) {
  auto& r = remotes_[node];
  if (!r)
    r = actors::remote_node::create(
      engine_->loop(), engine_->fabric(), engine_->link_options(node_called(node)));
  return r;
}

client_core::way client_core::way_to(std::size_t provider) {
  std::lock_guard guard{mutex_};
  auto& known = known_[provider];
  if (!known.via && !is_here(known.entry.node))
    known.via = remote_of(known.entry.node);
  return {known.entry, known.via};
}

bool client_core::sends_at_once(std::size_t provider) {
  auto via = way_to(provider).via;
  return via && via->is_connected();
}

// Nodes that the directory lacks are known by a provider that a view names.
node_entry client_core::node_called(const std::string& node) const {
  if (auto* known = find_node(where_, node))
    return *known;
  for (auto& known : known_)
    if (known.entry.node == node && !known.entry.addresses.empty())
      return {node, known.entry.addresses};
  return {{}, {first_address_}};
}

std::uint32_t client_core::timeout_ms(std::chrono::milliseconds wanted) const {
  auto asked = wanted.count() > 0 ? static_cast<std::uint64_t>(wanted.count())
                                  : engine_->settings().client.request_timeout_ms;
  return static_cast<std::uint32_t>(
    std::min<std::uint64_t>(asked, std::numeric_limits<std::uint32_t>::max()));
}

time_point client_core::deadline_after(std::chrono::milliseconds timeout) const {
  return steady_clock::now() + std::chrono::milliseconds{timeout_ms(timeout)};
}

time_point client_core::search_deadline_after(std::chrono::milliseconds timeout) const {
  return steady_clock::now() + std::chrono::milliseconds{timeout_ms(timeout) / 2 + 1};
}

std::uint32_t client_core::left_ms(time_point deadline) {
  auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
  return static_cast<std::uint32_t>(std::max<std::int64_t>(left, 0));
}

void client_core::run(std::function<void()> work) {
  actors::run_in(engine_->system(), caller_, std::move(work));
}

parked_watches& client_core::watches_at(watched what, std::size_t provider) {
  return watches_.try_emplace({what, provider}, *this, what, provider).first->second;
}

void client_core::at(time_point when, std::function<void()> work) {
  auto left = std::chrono::ceil<std::chrono::milliseconds>(when - steady_clock::now());
  actors::run_in(
    engine_->system(), caller_,
    [actor = caf::actor_cast<actors::caller*>(caller_),
     left = std::max(left, std::chrono::milliseconds{0}),
     work = std::move(work)] { actor->delayed_send(actor, left, actors::own_work{work}); });
}

std::uint32_t client_core::connect_timeout_ms() const {
  return static_cast<std::uint32_t>(engine_->settings().client.connect_timeout_ms);
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

std::shared_ptr<memory_source> client_core::staging() {
  std::lock_guard guard{mutex_};
  if (!staging_ && !makes_staging_.joinable())
    try {
      makes_staging_ = background_thread([this] {
        // The pages are cleared while a program that starts may wait for its restore.
        lower_priority(engine_->settings().client.mover_nice);
        make_staging();
      });
    } catch (const std::system_error& e) {
      log().warn("no thread makes the memory for snapshots why=\"{}\"", e.what());
    }
  return staging_;
}

// Takes no lock meanwhile, since the I/O loop takes it, too.
void client_core::make_staging() {
  auto made = engine_->fabric()->make_memory(
    {.name = "millrace.client", .size_bytes = engine_->settings().client.staging_bytes});
  if (!made)
    return log().warn(
      "there is no memory for snapshots (client.staging), the tensors themselves are read "
      "why=\"{}\"",
      made.error().to_string());
  std::lock_guard guard{mutex_};
  staging_ = std::move(*made);
}

} // namespace millrace::runtime
