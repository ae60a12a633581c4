// Finds the local side of a transfer, and hands the transfer to the link of its peer.
// Called by the fabric.
#include <millrace/core/assert.hpp>
#include <millrace/core/log.hpp>
#include <millrace/net/loop/sweep_timer.hpp>
#include <millrace/transport/peer_links.hpp>
#include <millrace/transport/verbs/peer_link.hpp>
#include <millrace/transport/verbs/unmap_watch.hpp>
#include <millrace/transport/verbs/verbs_driver.hpp>

#include <unistd.h>

#include <algorithm>
#include <set>

namespace millrace::transport {

namespace {

using namespace verbs;

constexpr std::uint32_t sweep_ms = 1000; // how soon registrations of freed memory are dropped

std::uint64_t half_of_memory() {
  return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
    static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
}

std::shared_ptr<registration_cache> make_cache(
  const device_list& devices, const verbs_options& options) {
  std::shared_ptr<unmap_watch> watch = options.watch_unmaps ? unmap_watch::open() : nullptr;
  registration_cache::hooks h;
  h.make = [devices](const memory_range& where) -> result<std::shared_ptr<void>> {
    return registered_memory::add(devices, where.data, where.size_bytes).map([](auto&& m) {
      return std::static_pointer_cast<void>(m);
    });
  };
  h.watch = [watch](const memory_range& where) { return watch && watch->watch(where); };
  h.unwatch = [watch](const memory_range& where) { watch->unwatch(where); };
  h.unmapped = [watch](std::vector<memory_range>& out) {
    if (watch)
      watch->take(out);
  };
  auto bytes = options.cache_bytes_max == 0 ? half_of_memory() : options.cache_bytes_max;
  return std::make_shared<registration_cache>(
    registration_cache::bounds{options.cache_entries_max, bytes}, std::move(h));
}

std::vector<report_line> row_of(const verbs_rail_stats& r) {
  return {
    {"peer", r.peer},
    {"device", r.device},
    {"state", r.state},
    {"connected_by", r.connected_by},
    {"bytes", r.bytes},
    {"rate_bytes_per_s", r.rate_bytes_per_s},
    {"depth", std::uint64_t{r.depth}},
    {"requests", r.requests},
    {"retried", r.retried},
    {"failures", r.failures},
    {"last_error", r.last_error}};
}

driver_report report_of(const verbs_stats& s) {
  driver_report out{
    "rdma",
    {{"registrations", s.registrations},
     {"registered_bytes", s.registered_bytes},
     {"grants", s.grants},
     {"windows", s.windows},
     {"by_dma_buf", s.by_dma_buf},
     {"by_peer_memory", s.by_peer_memory}},
    {{"rails", {}}}};
  for (auto& r : s.rails)
    out.tables.front().rows.push_back(row_of(r));
  return out;
}

class driver_impl : public verbs_driver, public std::enable_shared_from_this<driver_impl> {
public:
  driver_impl(
    std::shared_ptr<net::io_loop> loop, std::shared_ptr<mover_pool> movers,
    const copy_limits& limits, const verbs_options& options)
    : loop_(std::move(loop)) {
    parts_.options = options;
    parts_.movers = std::move(movers);
    parts_.limits = limits;
    auto devices = open_devices(parts_.options, state_);
    if (devices.empty()) {
      log().debug("the verbs driver reaches no peer: {}", state_.remark);
      return;
    }
    parts_.sources = {
      devices,
      std::make_shared<arena_registry>(
        registering_with(devices), std::chrono::milliseconds{parts_.options.register_retry_ms}),
      make_cache(devices, parts_.options)};
    auto thread = completion_thread::start(devices, parts_.options);
    auto setup = setup_pool::start(parts_.options.setup_threads);
    if (!thread || !setup) {
      state_.remark = (thread ? setup.error() : thread.error()).to_string();
      log().warn("the verbs driver reaches no peer: {}", state_.remark);
      if (thread)
        (*thread)->stop();
      return;
    }
    parts_.thread = std::move(*thread);
    parts_.setup = std::move(*setup);
    if (parts_.options.connect == verbs_connect::rdma_cm)
      open_rdma_cm();
  }

  ~driver_impl() override {
    if (!parts_.thread)
      return;
    if (parts_.cm)
      parts_.cm->close();
    parts_.thread->stop();
    parts_.setup->stop();
    for (auto& link : links_.all())
      link->close_now({errc::unavailable, "the verbs driver ends"});
  }

  std::string_view name() const noexcept override { return "verbs"; }
  driver_capabilities capabilities() const noexcept override {
    return {.strided_regions = false, .any_file = false, .device_memory = true};
  }
  bool reaches(const peer_id& owner) const noexcept override {
    auto link = link_to(owner);
    return link && link->reachable();
  }
  const verbs_state& devices() const noexcept override { return state_; }

  verbs_stats stats() const override {
    verbs_stats out;
    if (!parts_.thread)
      return out;
    out.registrations = parts_.sources.cache->entries();
    out.registered_bytes = parts_.sources.cache->bytes();
    out.by_dma_buf = registered_directly().by_dma_buf;
    out.by_peer_memory = registered_directly().by_peer_memory;
    for (auto& link : links_.all()) {
      auto one = link->stats();
      out.rails.insert(out.rails.end(), one.rails.begin(), one.rails.end());
      out.grants += one.grants;
      out.windows += one.windows;
    }
    return out;
  }

  std::optional<driver_report> report() const override { return report_of(stats()); }

  // Without the port, as in "mlx5_0:2".
  std::vector<std::string> devices_in_use() const override {
    std::set<std::string> out;
    for (auto& rail : stats().rails)
      if (rail.state == "up")
        out.insert(rail.device.substr(0, rail.device.find(':')));
    return {out.begin(), out.end()};
  }

  void invalidate(const std::byte* data, std::uint64_t size_bytes) override {
    if (parts_.thread)
      parts_.sources.cache->invalidate(data, size_bytes);
  }

  void peer_opened(const std::shared_ptr<net::channel>& c) override {
    if (!parts_.thread)
      return;
    auto link = peer_link::make(c, parts_);
    links_.add(*c, link);
    link->open();
    arm_sweep();
  }

  // Registers the arena once, before a transfer waits for it.
  void memory_made(const std::shared_ptr<arena>& a) override {
    if (!parts_.thread)
      return;
    arm_sweep();
    parts_.movers->submit(
      1,
      [weak = std::weak_ptr{a}, registry = parts_.sources.arenas](std::uint32_t) {
        auto alive = weak.lock();
        if (!alive)
          return;
        if (auto made = registry->add(alive); !made)
          log().debug("arena not registered why=\"{}\"", made.error().to_string());
      },
      [] {}, job_class::background);
  }

  void peer_closed(net::channel& c, const status& why) override {
    // The link stays in the table until it has ended everything, so that the driver's destructor
    // finds it.
    if (auto link = links_.find(c))
      link->close(why, [weak = weak_from_this(), &c] {
        if (auto self = weak.lock())
          self->links_.take(c);
      });
  }

  void on_message(
    net::channel& c, std::span<const std::byte> body, std::vector<net::unique_fd>) override {
    auto link = links_.find(c);
    if (!link)
      return;
    if (auto bad = link->take(body); !bad.ok())
      c.close(bad.within("a verbs message"));
  }

  void submit(transfer t, completion<transfer_report> done) override {
    auto link = link_to(t.remote.owner);
    if (!link)
      return done(fail(errc::peer_lost, "no connection to the process that owns the memory"));
    auto running = std::make_shared<running_transfer>();
    running->what = std::move(t);
    running->done = std::move(done);
    std::vector<std::shared_ptr<arena>> missing;
    if (auto bad = locate(*running, missing); !bad.ok())
      return running->done(fail(bad));
    if (missing.empty())
      return link->start(std::move(running));
    // Registering blocks, so a mover does it.
    parts_.movers->submit(
      1,
      [self = shared_from_this(), link, running, missing](std::uint32_t) {
        self->register_and_start(link, running, missing);
      },
      [] {});
  }

private:
  // Devices that rdma_cm cannot reach are connected over the channel.
  void open_rdma_cm() {
    auto hub = cm_hub::open(loop_);
    if (!hub)
      return log().warn(
        "queue pairs are connected over the channel why=\"{}\"", hub.error().detail());
    for (auto& d : parts_.sources.devices) {
      auto bound = (*hub)->bind(*d, {});
      parts_.cm_reaches.push_back(bound.has_value());
      if (!bound)
        log().warn(
          "queue pairs are connected over the channel device={} why=\"{}\"", d->name(),
          bound.error().detail());
    }
    parts_.cm = std::move(*hub);
  }

  std::shared_ptr<peer_link> link_to(const peer_id& owner) const noexcept {
    // Two nodes that connect to each other have two links. The rails of one may be down.
    auto link = links_.to(owner, [](auto& l) { return l.reachable(); });
    // A link without rails may still get some.
    return link ? link : links_.to(owner, [](auto&) { return true; });
  }

  void register_and_start(
    const std::shared_ptr<peer_link>& link, const std::shared_ptr<running_transfer>& running,
    std::vector<std::shared_ptr<arena>> missing) {
    for (auto& a : missing)
      if (auto made = parts_.sources.arenas->add(a); !made)
        return running->done(fail(made.error()));
    missing.clear();
    auto bad = locate(*running, missing);
    if (bad.ok() && !missing.empty())
      bad = {errc::internal, "an arena went while it was registered"};
    if (!bad.ok())
      return running->done(fail(bad));
    link->start(running);
  }

  // Finds registrations for the local side of every op. Arenas that must be registered first are
  // put into `missing`.
  status locate(running_transfer& t, std::vector<std::shared_ptr<arena>>& missing) const {
    t.memories.clear();
    t.total_bytes = 0;
    std::vector<local_run> runs;
    runs.reserve(t.what.ops.size());
    std::shared_ptr<arena> last;
    for (auto& op : t.what.ops) {
      auto* data = op.local - op.lead;
      auto covered = op.lead + op.length + op.tail;
      auto same =
        last && data >= last->data() && data + covered <= last->data() + last->size_bytes();
      if (!same) {
        auto place = find_arena(data, covered);
        if (!place)
          return place.error();
        last = std::move(place->in);
      }
      auto registered = parts_.sources.arenas->find(*last);
      if (!registered)
        return registered.error();
      if (!*registered) {
        if (std::find(missing.begin(), missing.end(), last) == missing.end())
          missing.push_back(last);
        continue;
      }
      runs.push_back({op.remote_offset, op.local, op.length, memory_index(t, *registered)});
      t.total_bytes += op.length;
    }
    if (missing.empty())
      plan(t, std::move(runs));
    return {};
  }

  static std::uint32_t memory_index(
    running_transfer& t, const std::shared_ptr<registered_memory>& m) {
    auto found = std::find(t.memories.begin(), t.memories.end(), m);
    if (found == t.memories.end())
      found = t.memories.insert(found, m);
    return static_cast<std::uint32_t>(found - t.memories.begin());
  }

  void plan(running_transfer& t, std::vector<local_run> runs) const {
    t.cutter = request_cutter{arrange(std::move(runs))};
    t.keys_of_device.assign(parts_.sources.devices.size(), {});
    for (auto& m : t.memories) {
      t.node_mask |= m->node_mask();
      for (std::size_t d = 0; d < t.keys_of_device.size(); ++d)
        t.keys_of_device[d].push_back(m->local_key(d));
    }
  }

  void arm_sweep() { sweeps_.arm(weak_from_this(), &driver_impl::sweep); }

  void sweep() {
    parts_.movers->submit(
      1,
      [sources = parts_.sources](std::uint32_t) {
        sources.arenas->sweep();
        sources.cache->sweep();
      },
      [] {}, job_class::background);
    arm_sweep();
  }

  std::shared_ptr<net::io_loop> loop_;
  verbs_state state_;
  link_parts parts_;
  peer_links<peer_link> links_;
  net::sweep_timer sweeps_{loop_, sweep_ms};
};

} // namespace

std::shared_ptr<verbs_driver> make_verbs_driver(
  std::shared_ptr<net::io_loop> loop, std::shared_ptr<mover_pool> movers, const copy_limits& limits,
  const verbs_options& options) {
  return std::make_shared<driver_impl>(std::move(loop), std::move(movers), limits, options);
}

result<std::shared_ptr<driver>> make_verbs_driver(
  const driver_deps& deps, const verbs_options& options) {
  auto made = make_verbs_driver(deps.loop, deps.movers, deps.limits, options);
  if (auto& why = made->devices().remark; !why.empty())
    return fail(errc::unavailable, why);
  return made;
}

} // namespace millrace::transport
