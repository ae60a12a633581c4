// Opens buckets of every kind, and pools, from their settings.
#include <millrace/actors/checkpoint/checkpoint_manager.hpp>
#include <millrace/actors/store/tensor_store.hpp>
#include <millrace/runtime/node/provider.hpp>
#include <millrace/storage/builtin.hpp>

#include <algorithm>

namespace millrace::runtime {

namespace {

transport::staging_mode mode_of(const config::settings& s) {
  return s.staging.mode == config::staging_mode::pinned ? transport::staging_mode::pinned
                                                        : transport::staging_mode::on_demand;
}

storage::when_full full_of(const config::provider_settings& p) {
  return p.full == config::when_full::evict ? storage::when_full::evict
                                            : storage::when_full::refuse;
}

actors::operation_limits bounds_of(const config::settings& s) {
  actors::operation_limits l;
  l.windows_max = s.limits.windows_max;
  l.eager_bytes_max = static_cast<std::uint32_t>(s.transport.eager_max_bytes);
  l.request_timeout_ms = static_cast<std::uint32_t>(s.limits.request_timeout_ms);
  l.request_timeout_max_ms = static_cast<std::uint32_t>(s.limits.request_timeout_max_ms);
  return l;
}

actors::tensor_store_limits store_limits_of(const config::settings& s) {
  actors::tensor_store_limits l{bounds_of(s)};
  l.stores_max = s.limits.stores_max;
  l.loads_max = s.limits.loads_max;
  l.queued_max = s.limits.queued_max;
  return l;
}

actors::checkpoint_limits checkpoint_limits_of(const config::settings& s) {
  actors::checkpoint_limits l{bounds_of(s)};
  l.registrations_max = s.checkpoints.registrations_max;
  l.saves_queued_max = s.checkpoints.saves_queued_max;
  l.restores_max = s.limits.loads_max;
  l.queued_max = s.limits.queued_max;
  return l;
}

} // namespace

result<std::shared_ptr<memory_source>> node_memory::make(
  const std::string& name, std::uint64_t size_bytes) {
  auto& s = engine_->settings();
  // Other users do not get pages from the system's pool, see `shm::peer_link::offer`.
  return engine_->fabric()->make_memory(
    {.name = "millrace." + name,
     .size_bytes = size_bytes,
     .huge_pages = s.staging.huge_pages == config::wish::automatic && s.node.allow_users.empty(),
     .lock = s.staging.lock == config::wish::automatic},
    mode_of(s));
}

result<std::shared_ptr<memory_source>> node_memory::staging() {
  if (!staging_) {
    auto made = make("staging", engine_->settings().staging.size_bytes);
    if (!made)
      return made;
    staging_ = std::move(*made);
  }
  return staging_;
}

result<std::unique_ptr<provider>> provider::open(
  const config::provider_settings& p, const std::shared_ptr<engine>& e, node_memory& memory,
  actors::service_table& services) {
  std::unique_ptr<provider> out{new provider};
  out->name_ = p.name;
  auto bad = p.bucket == config::bucket_kind::pmem ? out->open_pool(p, e, memory)
                                                   : out->open_bucket(p, e, memory);
  if (!bad.ok())
    return fail(bad);
  services.add<actors::store_service>(
    p.name,
    e->adopt(actors::spawn_tensor_store(
      e->system(), {p.name, p.group, out->bucket_, e->fabric(), store_limits_of(e->settings())})));
  if (out->pool_)
    if (bad = out->serve_checkpoints(p, e, memory, services); !bad.ok())
      return fail(bad);
  return out;
}

status provider::open_bucket(
  const config::provider_settings& p, const std::shared_ptr<engine>&, node_memory& memory) {
  storage::bucket_options options;
  options.kind = config::to_string(p.bucket);
  options.path = p.path;
  options.capacity_bytes = p.capacity_bytes;
  options.full = full_of(p);
  options.io_threads = p.io_threads;
  options.window_bytes = p.window_bytes;
  options.inline_max_bytes = p.inline_max_bytes;
  auto lent = p.bucket == config::bucket_kind::memory ? memory.make(p.name, p.capacity_bytes)
                                                      : memory.staging();
  if (!lent)
    return lent.error();
  options.memory = std::move(*lent);
  auto bucket = storage::open_bucket(options);
  if (!bucket)
    return bucket.error();
  bucket_ = std::move(*bucket);
  return {};
}

status provider::open_pool(
  const config::provider_settings& p, const std::shared_ptr<engine>& e, node_memory& memory) {
  auto staging = memory.staging();
  if (!staging)
    return staging.error();
  storage::pool_options options;
  options.path = p.path;
  options.capacity_bytes = p.capacity_bytes;
  options.create_if_missing = p.create;
  options.low_space = p.low_space == config::when_low::reclaim ? storage::when_low_space::reclaim
                                                               : storage::when_low_space::refuse;
  options.io_threads = p.io_threads;
  options.window_bytes = p.window_bytes;
  options.models_full = full_of(p);
  options.staging = std::move(*staging);
  auto opened = storage::open_pool(std::move(options));
  if (!opened)
    return opened.error();
  pool_ = std::move(*opened);
  for (auto& mapping : pool_->mappings()) {
    auto token = e->fabric()->adopt(mapping);
    if (!token)
      return token.error();
    adopted_.push_back(std::move(*token));
  }
  bucket_ = pool_->models();
  return {};
}

status provider::serve_checkpoints(
  const config::provider_settings& p, const std::shared_ptr<engine>& e, node_memory& memory,
  actors::service_table& services) {
  auto& s = e->settings().checkpoints;
  actors::checkpoint_manager_deps deps;
  deps.name = p.name;
  deps.kind = config::to_string(p.bucket);
  deps.group = p.group;
  deps.store = pool_->checkpoints();
  deps.fabric = e->fabric();
  if (!p.flush_to.empty()) {
    storage::flush::step_flusher_options options;
    options.provider = p.name;
    options.flush.directory = p.flush_to;
    options.flush.keep = p.flush_keep;
    options.every = p.flush_every;
    auto flusher = storage::flush::step_flusher::open(std::move(options), deps.store);
    if (!flusher)
      return flusher.error();
    flusher_ = std::move(*flusher);
    deps.keep_min = storage::flush::step_flusher::keep_min;
    deps.saved = [flusher = flusher_](const actors::save_receipt& receipt) {
      if (receipt.complete)
        flusher->saved(receipt.model, receipt.step);
    };
    deps.flushed = [flusher = flusher_] { return flusher->counters(); };
  }
  deps.limits = checkpoint_limits_of(e->settings());
  deps.page_bytes_max =
    std::min<std::uint64_t>(deps.page_bytes_max, e->settings().channel.frame_max_bytes / 2);
  deps.repack.when_low = p.repack == config::repack_mode::when_low;
  deps.repack.below_percent = s.repack_below_percent;
  // Where slots are not mapped, windows are staging memory already.
  if (deps.store->capabilities().in_place) {
    auto staging = memory.make(p.name + ".snapshots", s.staging_piece_bytes * s.staging_pieces);
    if (!staging)
      return staging.error();
    auto blocks = actors::staging_blocks::make(**staging, s.staging_piece_bytes, s.staging_pieces);
    if (!blocks)
      return blocks.error();
    deps.blocks = std::move(*blocks);
  }
  services.add<actors::checkpoint_service>(
    p.name, e->adopt(actors::spawn_checkpoint_manager(e->system(), std::move(deps))));
  return {};
}

status provider::close(std::uint32_t deadline_ms) {
  status bad;
  if (bucket_)
    bad = bucket_->close(deadline_ms);
  if (flusher_)
    if (auto late = flusher_->close(deadline_ms); bad.ok())
      bad = late;
  if (pool_)
    if (auto late = pool_->checkpoints()->close(deadline_ms); bad.ok())
      bad = late;
  return bad;
}

} // namespace millrace::runtime
