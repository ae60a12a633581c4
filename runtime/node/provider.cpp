// Opens a bucket of any kind from its settings, and serves the checkpoints of kinds that keep some.
#include <millrace/actors/store/tensor_store.hpp>
#include <millrace/config/units.hpp>
#include <millrace/core/log.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/provider.hpp>
#include <millrace/storage/builtin.hpp>
#include <millrace/transport/memory/arena.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

namespace millrace::runtime {

actors::operation_limits limits_of(const config::settings& s) {
  return {s.limits, s.options.of<transport::fabric_options>().eager_bytes_max};
}

namespace {

void refuse_all(
  const std::vector<std::shared_ptr<actors::staging_memory>>& lent, const status& why) {
  for (auto& memory : lent)
    memory->refuse_all(why);
}

// Returns the place of a provider in the file. Several nodes of a process may each have a file that
// lists only itself.
actors::placement_file place_in_file(
  const config::provider_settings& p, const config::settings& all) {
  actors::placement_file place{p.id, p.name, p.group, {}, false};
  auto where = directory_of(all);
  place.of_several = where.providers.size() > 1;
  for (auto& other : where.providers)
    if (other.group == p.group)
      place.members.push_back(
        {other.id, other.name, other.node, other.addresses, other.weight, false});
  auto listed = std::ranges::any_of(
    where.providers, [&](auto& entry) { return entry.name == p.name && entry.group == p.group; });
  if (!listed)
    place.members.push_back({p.id, p.name, all.node.name, all.node.listen, p.weight, false});
  return place;
}

} // namespace

status node_memory::check_bound(const std::string& name, std::uint64_t size_bytes) const {
  auto together = counted_bytes_ + size_bytes;
  if (!bound_ || together <= bound_->limit_bytes)
    return {};
  return {
    errc::no_space,
    "the memory of this node with {} has {}, and its control group {} allows {}: {}",
    name,
    config::format_size(together),
    bound_->group,
    config::format_size(bound_->limit_bytes),
    take_less_memory(engine_->settings())};
}

status node_memory::check(const std::string& name, std::uint64_t size_bytes) const {
  if (auto bad = check_bound(name, size_bytes); !bad.ok())
    return bad;
  return transport::arena::check_available(
    fmt::format("making {} for {}", config::format_size(size_bytes), name), size_bytes);
}

status node_memory::count(const std::string& name, std::uint64_t size_bytes) {
  auto bad = check_bound(name, size_bytes);
  if (bad.ok())
    counted_bytes_ += size_bytes;
  return bad;
}

status node_memory::check_with_peers() const {
  auto for_peers = bytes_for_peers(engine_->settings());
  if (!bound_ || counted_bytes_ + for_peers <= bound_->limit_bytes)
    return {};
  return {
    errc::no_space,
    "the memory of this node has {}, peers may make it {} more, and its control group {} allows "
    "{}: {}",
    config::format_size(counted_bytes_),
    config::format_size(for_peers),
    bound_->group,
    config::format_size(bound_->limit_bytes),
    give_peers_less_memory()};
}

result<std::shared_ptr<memory_source>> node_memory::make(
  const std::string& name, std::uint64_t size_bytes, transport::arena_sharing sharing) {
  auto& s = engine_->settings();
  if (auto bad = count(name, size_bytes); !bad.ok())
    return fail(bad);
  // Touching so much takes a while, on a slow machine seconds for each GiB.
  if (size_bytes >= 1u << 30)
    log().info(
      "touching memory node={} for={} size={}", s.node.name, name, config::format_size(size_bytes));
  // Memory from the system's pool of huge pages is not mapped for other users.
  return engine_->fabric()->make_memory(
    {.name = "millrace." + name,
     .size_bytes = size_bytes,
     .huge_pages = s.staging.huge_pages == config::wish::automatic && s.node.allow_users.empty(),
     .lock = s.staging.lock == config::wish::automatic,
     .sharing = sharing});
}

result<std::shared_ptr<memory_source>> node_memory::staging() {
  if (!staging_) {
    auto made = make("staging", engine_->settings().staging.size_bytes);
    if (!made)
      return made;
    staging_ = std::move(*made);
    arena_ = lent_.emplace_back(std::make_shared<actors::staging_memory>(staging_));
  }
  return staging_;
}

std::shared_ptr<actors::staging_lender> node_memory::lend_to(
  const std::string& provider, std::uint32_t quota_percent) const {
  return std::make_shared<actors::staging_lender>(
    arena_, provider, arena_->capacity_bytes() * quota_percent / 100);
}

result<std::shared_ptr<actors::staging_lender>> node_memory::make_snapshots(
  const std::string& provider, std::uint64_t size_bytes) {
  auto made = make(provider + ".snapshots", size_bytes);
  if (!made)
    return fail(made.error());
  auto& lent = lent_.emplace_back(std::make_shared<actors::staging_memory>(std::move(*made)));
  return std::make_shared<actors::staging_lender>(
    lent, provider + " snapshots", lent->capacity_bytes());
}

actors::supervised_part node_memory::start_manager() const {
  actors::staging_rules rules;
  rules.block_bytes = engine_->settings().staging.block_bytes;
  rules.lease = std::chrono::milliseconds{engine_->settings().staging.lease_ms};
  // The engine ends after the actors, as for those of providers.
  auto start = [e = engine_.get(), lent = lent_, rules] {
    return e->adopt(actors::spawn_staging_manager(e->system(), lent, rules)).address();
  };
  auto take_down = [lent = lent_](const status& why) { refuse_all(lent, why); };
  return {"the staging manager", start(), start, take_down};
}

void node_memory::refuse_waiting(const status& why) const { refuse_all(lent_, why); }

std::vector<staging_status> node_memory::report() const {
  std::vector<staging_status> out;
  for (auto& memory : lent_)
    std::ranges::copy(memory->report(), std::back_inserter(out));
  return out;
}

// Starts an actor and announces it, now and whenever its node starts it anew.
template <class Service, class Deps, class Handle>
void provider::supervise(
  const std::shared_ptr<engine>& e, const std::shared_ptr<actors::service_table>& services,
  Deps deps, Handle (*spawn)(caf::actor_system&, Deps)) {
  // The engine ends after the actors. One that they kept alive would end on a thread of its own.
  auto start = [e = e.get(), services, deps = std::move(deps), spawn] {
    auto fresh = deps;
    auto in_use = fresh.in_use = std::make_shared<bool>();
    auto actor = e->adopt(spawn(e->system(), std::move(fresh)));
    services->add<Service>(deps.name, actor);
    return actors::started_actor{actor, in_use};
  };
  auto running = start();
  actors_.push_back({name_, std::move(running), std::move(start)});
}

result<std::unique_ptr<provider>> provider::open(
  const config::provider_settings& p, const std::shared_ptr<engine>& e, node_memory& memory,
  const std::shared_ptr<actors::service_table>& services) {
  std::unique_ptr<provider> out{new provider};
  out->name_ = p.name;
  if (auto bad = out->open_bucket(p, e, memory); !bad.ok())
    return fail(bad);
  std::optional<actors::checkpoint_manager_deps> checkpoints;
  if (out->opened_.checkpoints) {
    auto prepared = out->prepare_checkpoints(p, e, memory);
    if (!prepared)
      return fail(prepared.error());
    checkpoints = std::move(*prepared);
    checkpoints->staging = out->lender_;
  }
  auto& s = e->settings();
  auto placement = actors::placement_at_start(
    *out->opened_.models, place_in_file(p, s),
    std::chrono::milliseconds{s.limits.request_timeout_ms});
  if (!placement)
    return fail(placement.error());
  out->id_ = placement->id;
  actors::tensor_store_deps models{
    p.name,
    p.group,
    out->opened_.models,
    e->fabric(),
    limits_of(s),
    out->lender_,
    std::make_shared<actors::kept_placement>(std::move(*placement))};
  out->supervise<actors::store_service>(e, services, std::move(models), actors::spawn_tensor_store);
  if (checkpoints)
    out->supervise<actors::checkpoint_service>(
      e, services, std::move(*checkpoints), actors::spawn_checkpoint_manager);
  return out;
}

status provider::open_bucket(
  const config::provider_settings& p, const std::shared_ptr<engine>& e, node_memory& memory) {
  auto kind = storage::bucket_called(p.bucket);
  if (!kind)
    return kind.error();
  auto needs = (*kind)->section.needs(p.options);
  if (auto bad = memory.count(p.name, needs.file_bytes + needs.heap_bytes); !bad.ok())
    return bad;
  auto lent = needs.own_bytes > 0 ? memory.make(p.name, needs.own_bytes) : memory.staging();
  if (!lent)
    return lent.error();
  if (needs.own_bytes == 0)
    lender_ = memory.lend_to(p.name, p.staging_percent);
  auto opened = (*kind)->open(p.options, std::move(*lent));
  if (!opened)
    return opened.error();
  opened_ = std::move(*opened);
  if (opened_.checkpoints)
    for (auto& mapping : opened_.checkpoints->mappings) {
      auto token = e->fabric()->adopt(mapping);
      if (!token)
        return token.error();
      adopted_.push_back(std::move(*token));
    }
  return {};
}

result<actors::checkpoint_manager_deps> provider::prepare_checkpoints(
  const config::provider_settings& p, const std::shared_ptr<engine>& e, node_memory& memory) {
  auto& s = e->settings().checkpoints;
  actors::checkpoint_manager_deps deps;
  deps.name = p.name;
  deps.kind = opened_.models->kind();
  deps.group = p.group;
  auto& kept = *opened_.checkpoints;
  deps.store = kept.store;
  deps.fabric = e->fabric();
  if (!kept.flush.flush.directory.empty()) {
    auto options = kept.flush;
    options.provider = p.name;
    auto flusher = storage::flush::step_flusher::open(std::move(options), deps.store);
    if (!flusher)
      return fail(flusher.error());
    flusher_ = std::move(*flusher);
    deps.keep_min = storage::flush::step_flusher::keep_min;
    deps.saved = [flusher = flusher_](const save_receipt& receipt) {
      if (receipt.complete)
        flusher->saved(receipt.model, receipt.step);
    };
    deps.flushed = [flusher = flusher_] { return flusher->counters(); };
  }
  deps.limits = {limits_of(e->settings()), e->settings().checkpoints};
  deps.page_bytes_max =
    std::min<std::uint64_t>(deps.page_bytes_max, e->channel_options().frame_bytes_max / 2);
  deps.repack.when_low = kept.repack_when_low;
  deps.repack.below_percent = s.repack_below_percent;
  // Without mapped slots, windows are staging memory already.
  if (deps.store->capabilities().in_place) {
    auto lender = memory.make_snapshots(p.name, s.staging_piece_bytes * s.staging_pieces);
    if (!lender)
      return fail(lender.error());
    deps.snapshots = {std::move(*lender), s.staging_piece_bytes};
  }
  return deps;
}

std::vector<std::weak_ptr<void>> provider::storage() const {
  std::vector<std::weak_ptr<void>> out{opened_.models, opened_.keeps};
  if (opened_.checkpoints)
    out.emplace_back(opened_.checkpoints->store);
  return out;
}

status provider::close(std::uint32_t deadline_ms) {
  status bad;
  if (opened_.models)
    bad = opened_.models->close(deadline_ms);
  if (flusher_)
    if (auto late = flusher_->close(deadline_ms); bad.ok())
      bad = late;
  if (opened_.checkpoints)
    if (auto late = opened_.checkpoints->store->close(deadline_ms); bad.ok())
      bad = late;
  return bad;
}

} // namespace millrace::runtime
