// The choice of a driver, and what every path moved.
#include <millrace/core/codec.hpp>
#include <millrace/core/log.hpp>
#include <millrace/transport/builtin.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/staging_pool.hpp>

#include <bit>
#include <map>
#include <mutex>

namespace millrace::transport {

namespace {

class fabric_impl : public fabric, public std::enable_shared_from_this<fabric_impl> {
public:
  explicit fabric_impl(const fabric_options& options)
    : movers_(std::make_shared<mover_pool>(options.movers)), limits_(options.limits) {}

  status add_drivers(const fabric_options& options, const std::shared_ptr<io_loop>& loop) {
    driver_deps deps{
      loop,
      movers_,
      options.limits,
      [weak = weak_from_this()] {
        auto self = weak.lock();
        return self ? self->shared_arenas() : std::vector<std::shared_ptr<arena>>{};
      },
      options.granule_bytes,
      options.tcp,
      options.verbs};
    for (auto& name : options.prefer) {
      auto made = make_driver(name, deps);
      if (!made)
        return made.error();
      drivers_.push_back(*made);
      if (auto d = std::dynamic_pointer_cast<peer_driver>(*made))
        peer_drivers_.push_back(std::move(d));
    }
    return {};
  }

  result<std::shared_ptr<memory_source>> make_memory(
    const arena_options& options, staging_mode mode) override {
    if (mode == staging_mode::on_demand)
      return make_on_demand_source(options);
    auto a = arena::create(options);
    if (!a)
      return fail(a.error());
    {
      std::lock_guard guard{mutex_};
      shared_.push_back(*a);
    }
    return make_staging_pool(std::move(*a));
  }

  result<std::shared_ptr<void>> adopt(const file_mapping& mapping) override {
    auto a = arena::adopt(mapping);
    if (!a)
      return fail(a.error());
    return std::shared_ptr<void>{std::move(*a)};
  }

  void copy(std::vector<local_copy> parts, bool write_back, completion<void> done) override {
    run_local_copies(*movers_, limits_, std::move(parts), write_back, std::move(done));
  }

  void peer_opened(const std::shared_ptr<channel>& c) override {
    {
      std::lock_guard guard{mutex_};
      names_[c->peer().id] = c->peer().name;
    }
    for (auto& d : peer_drivers_)
      d->peer_opened(c);
  }

  void peer_closed(channel& c, const status& why) override {
    for (auto& d : peer_drivers_)
      d->peer_closed(c, why);
    std::lock_guard guard{mutex_};
    names_.erase(c.peer().id);
    std::erase_if(stats_, [&](auto& entry) { return entry.first.first == c.peer().id; });
  }

  void on_frame(channel& c, frame f) override {
    wire_reader reader{f.body};
    std::string name;
    reader(name);
    for (auto& d : peer_drivers_)
      if (reader.ok() && d->name() == name)
        return d->on_message(c, reader.rest(), std::move(f.fds));
    if (!reader.ok())
      return c.close({errc::protocol_error, "a driver's message without its name"});
    // Settings differ: the peer finds out that this driver does not answer.
    log().debug(
      "message for a driver that is not used here driver={} peer={}", name, c.peer().name);
  }

  void submit(transfer t, completion<transfer_report> done) override {
    for (auto& d : drivers_)
      if (d->reaches(t.remote.owner))
        return submit_by(*d, std::move(t), std::move(done));
    done(fail(errc::peer_lost, "no driver reaches the process that owns the memory"));
  }

  const std::shared_ptr<mover_pool>& movers() const noexcept override { return movers_; }

  std::vector<path_stats> paths() const override {
    std::lock_guard guard{mutex_};
    std::vector<path_stats> out;
    for (auto& [key, stats] : stats_) {
      out.push_back(stats);
      auto name = names_.find(key.first);
      out.back().peer = name == names_.end() ? "this process" : name->second;
      out.back().driver = key.second;
    }
    return out;
  }

private:
  void submit_by(driver& d, transfer t, completion<transfer_report> done) {
    std::uint64_t bytes = 0;
    for (auto& op : t.ops)
      bytes += op.length;
    auto owner = t.remote.owner;
    d.submit(
      std::move(t),
      [self = shared_from_this(), owner, name = std::string{d.name()}, bytes,
       done = std::move(done)](result<transfer_report> report) {
        {
          std::lock_guard guard{self->mutex_};
          auto& stats = self->stats_[{owner, name}];
          ++(report ? stats.transfers : stats.failures);
          stats.bytes += report ? bytes : 0;
        }
        done(std::move(report));
      });
  }

  std::vector<std::shared_ptr<arena>> shared_arenas() const {
    std::lock_guard guard{mutex_};
    std::vector<std::shared_ptr<arena>> out;
    for (auto& weak : shared_)
      if (auto a = weak.lock())
        out.push_back(std::move(a));
    return out;
  }

  std::shared_ptr<mover_pool> movers_;
  copy_limits limits_;
  std::vector<std::shared_ptr<driver>> drivers_;
  std::vector<std::shared_ptr<peer_driver>> peer_drivers_;
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<arena>> shared_;
  std::map<peer_id, std::string> names_;
  std::map<std::pair<peer_id, std::string>, path_stats> stats_;
};

} // namespace

result<std::shared_ptr<fabric>> fabric::create(
  const fabric_options& options, const std::shared_ptr<io_loop>& loop) {
  auto made = std::make_shared<fabric_impl>(options);
  if (!std::has_single_bit(options.granule_bytes) || options.granule_bytes < 64u << 10)
    return fail(errc::invalid_argument, "granules have a power of two of bytes, 64 KiB at least");
  if (auto bad = made->add_drivers(options, loop); !bad.ok())
    return fail(bad);
  return made;
}

result<region> expose(const std::vector<tensor_view>& views, access_mode how) {
  auto list = gather_list::of(views, how);
  if (!list)
    return fail(list.error());
  return expose(std::move(*list), how);
}

} // namespace millrace::transport
