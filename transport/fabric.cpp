// Chooses a driver for each transfer, and the next driver when one fails.
#include <millrace/core/assert.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/log.hpp>
#include <millrace/transport/builtin.hpp>
#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/fabric_messages.hpp>
#include <millrace/transport/memory/staging_pool.hpp>
#include <millrace/transport/path_table.hpp>

#include <algorithm>
#include <bit>
#include <mutex>
#include <optional>
#include <utility>

namespace millrace::transport {

namespace {

// An attempt keeps one bit per driver that was tried.
constexpr std::size_t drivers_max = 64;

// Returns true for failures of a driver that say nothing about the memory. Another driver may
// succeed.
bool may_be_taken_on(errc code) {
  return code == errc::unsupported || code == errc::unavailable || code == errc::io_error ||
    code == errc::peer_lost;
}

// Returns true for what a machine or a build lacks, false for a mistake in the configuration.
bool is_missing_here(errc code) {
  return code == errc::unavailable || code == errc::unsupported || code == errc::not_found;
}

result<std::shared_ptr<driver>> make_driver(
  const std::string& name, const driver_deps& deps, const config::option_set& options) {
  std::string known;
  for (auto& kind : builtin_drivers()) {
    if (kind.name == name)
      return kind.make(deps, options);
    known.append(known.empty() ? "" : ", ").append(kind.name);
  }
  return fail(
    errc::invalid_argument, "there is no driver called {}; the drivers are: {}", name, known);
}

class fabric_impl : public fabric, public std::enable_shared_from_this<fabric_impl> {
public:
  explicit fabric_impl(const fabric_options& options)
    : movers_(std::make_shared<mover_pool>(options.movers, options.device_threads, options.yields)),
      limits_(options.limits), paths_(std::chrono::milliseconds{options.retry_after_ms}) {}

  status add_drivers(const fabric_options& options, const std::shared_ptr<net::io_loop>& loop) {
    driver_deps deps{
      .loop = loop,
      .movers = movers_,
      .limits = options.limits,
      .shared_arenas =
        [weak = weak_from_this()] {
          auto self = weak.lock();
          return self ? self->shared_arenas() : std::vector<std::shared_ptr<arena>>{};
        },
      .granule_bytes = options.granule_bytes,
      .listens = options.listens,
      .move =
        [weak = weak_from_this()](transfer t, completion<transfer_report> done) {
          if (auto self = weak.lock())
            return self->submit(std::move(t), std::move(done));
          done(fail(errc::unavailable, "the fabric ends"));
        }};
    for (auto& name : options.prefer) {
      auto made = make_driver(name, deps, options.drivers);
      if (made)
        add_driver(std::move(*made));
      else if (!is_missing_here(made.error().code()))
        return made.error();
      else
        log().at(
          options.prefer_is_explicit ? log_level::warn : log_level::debug,
          "transport left out driver={} why=\"{}\"", name, made.error().detail());
    }
    if (drivers_.empty())
      return {errc::unavailable, "none of the drivers in transport.prefer works on this machine"};
    return {};
  }

  void add_driver(std::shared_ptr<driver> d) {
    MILLRACE_ASSERT(drivers_.size() < drivers_max);
    if (auto talks = std::dynamic_pointer_cast<peer_driver>(d))
      peer_drivers_.push_back(std::move(talks));
    drivers_.push_back(std::move(d));
  }

  result<std::shared_ptr<memory_source>> make_memory(const arena_options& options) override {
    auto a = arena::create(options);
    if (!a)
      return fail(a.error());
    if (options.sharing == arena_sharing::transfers) {
      std::lock_guard guard{mutex_};
      shared_.push_back(*a);
    }
    tell_of(*a);
    return make_staging_pool(std::move(*a));
  }

  result<std::shared_ptr<void>> adopt(const file_mapping& mapping) override {
    auto a = arena::adopt(mapping);
    if (!a)
      return fail(a.error());
    tell_of(*a);
    return std::shared_ptr<void>{std::move(*a)};
  }

  void copy(std::vector<local_copy> parts, bool write_back, completion<void> done) override {
    run_local_copies(*movers_, limits_, std::move(parts), write_back, std::move(done));
  }

  void peer_opened(const std::shared_ptr<net::channel>& c) override {
    paths_.peer_opened(c->peer().id, net::name_and_host(c->peer()));
    drivers_here ours;
    for (auto& d : peer_drivers_) {
      d->peer_opened(c);
      ours.names.emplace_back(d->name());
    }
    send_or_close(*c, fabric_message::drivers, ours);
  }

  void peer_closed(net::channel& c, const status& why) override {
    // This comes first, so that transfers that one driver gives up are not handed to the next one.
    paths_.peer_closed(c.peer().id);
    for (auto& d : peer_drivers_)
      d->peer_closed(c, why);
  }

  void on_frame(net::channel& c, net::frame f) override {
    wire_reader reader{f.body};
    std::string name;
    reader(name);
    if (reader.ok() && name == driver_of(fabric_message{}))
      return on_message(c, reader.rest());
    for (auto& d : peer_drivers_)
      if (reader.ok() && d->name() == name)
        return d->on_message(c, reader.rest(), std::move(f.fds));
    // The peer uses a driver that this process does not have. It knows this by `drivers_here`.
    if (!reader.ok())
      c.close({errc::protocol_error, "a driver's message without its name"});
  }

  std::shared_ptr<net::stream_acceptor> stream_acceptor() const override {
    for (auto& d : peer_drivers_)
      if (auto streams = d->stream_acceptor())
        return streams;
    return nullptr;
  }

  void submit(transfer t, completion<transfer_report> done) override {
    attempt a;
    a.done = std::move(done);
    a.on_device = t.remote.on_device;
    for (auto& op : t.ops)
      a.bytes += op.length;
    if (auto first = next_driver(t.remote.owner, a))
      submit_by(*first, std::move(t), std::move(a));
    else
      a.done(fail(nobody_reaches(t.remote.owner, a)));
  }

  void map(const bulk_handle& remote, access_mode how, completion<mapped_region> done) override {
    for (auto& d : drivers_)
      if (d->capabilities().maps && d->reaches(remote.owner))
        return d->map(
          remote, how,
          [wanted = size_bytes(remote), done = std::move(done)](result<mapped_region> r) {
            // The handle may come from another process than the region.
            if (r && r->size_bytes != wanted)
              r = fail(
                errc::protocol_error, "a handle says {} bytes of a region that has {}", wanted,
                r->size_bytes);
            done(std::move(r));
          });
    if (!paths_.is_open(remote.owner))
      return done(fail(not_connected()));
    done(fail(
      errc::unsupported, "no driver maps memory of {}: only processes of one host map each other's",
      paths_.name_of(remote.owner)));
  }

  void invalidate(const void* data, std::uint64_t size_bytes) override {
    for (auto& d : drivers_)
      d->invalidate(static_cast<const std::byte*>(data), size_bytes);
  }

  const std::shared_ptr<mover_pool>& movers() const noexcept override { return movers_; }

  std::vector<path_stats> paths() const override {
    std::vector<path_stats> out;
    auto now = steady_clock::now();
    for (auto& row : paths_.rows()) {
      auto choice = next_driver(row.peer, {});
      // A driver that was never used is listed if it is the next choice.
      if (choice)
        row.drivers.try_emplace(*choice);
      for (auto& [index, d] : row.drivers)
        out.push_back(
          {row.name, std::string{drivers_[index]->name()}, d.bytes, d.transfers, d.failures,
           choice == index, d.rate.bytes_per_s(now), d.fallbacks, d.last_reason,
           std::string{d.carrier}});
    }
    return out;
  }

  std::vector<std::string> devices_in_use() const override {
    std::vector<std::string> out;
    for (auto& d : drivers_)
      for (auto& device : d->devices_in_use())
        out.push_back(std::move(device));
    return out;
  }

  std::vector<driver_report> reports() const override {
    std::vector<driver_report> out;
    for (auto& d : drivers_)
      if (auto report = d->report())
        out.push_back(std::move(*report));
    return out;
  }

private:
  // A transfer, while one driver after the other is tried.
  struct attempt {
    std::uint64_t bytes = 0;
    bool on_device = false;  // as the handle says
    std::uint64_t tried = 0; // one bit per driver, see drivers_max
    completion<transfer_report> done;
  };

  void on_message(net::channel& c, std::span<const std::byte> body) {
    drivers_here theirs;
    auto bad = take_message<fabric_message>(body, [&](auto kind, auto& reader) {
      if (kind == fabric_message::drivers && reader(theirs))
        leave_out_all_but(theirs, c);
      return status{}; // also for a kind of a later version
    });
    if (!bad.ok())
      c.close(bad.within("a message of the fabric"));
  }

  // A driver that waits for an answer of a peer without it would wait for as long as it may.
  void leave_out_all_but(const drivers_here& theirs, net::channel& c) {
    for (auto& d : peer_drivers_)
      if (std::ranges::find(theirs.names, d->name()) == theirs.names.end())
        d->peer_closed(
          c,
          {errc::peer_lost, "{} does not have the driver {}", net::name_and_host(c.peer()),
           d->name()});
  }

  bool is_candidate(std::size_t index, const peer_id& owner, const attempt& a) const {
    auto able = drivers_[index]->capabilities();
    return (a.tried >> index & 1) == 0 && (a.on_device ? able.device_memory : able.host_memory) &&
      drivers_[index]->reaches(owner);
  }

  static status not_connected() {
    return {
      errc::peer_lost, "the process that owns the memory is not connected: it ended, or was lost"};
  }

  status nobody_reaches(const peer_id& owner, const attempt& a) const {
    if (!paths_.is_open(owner))
      return not_connected();
    auto words = "no driver reaches " + paths_.name_of(owner) + ":";
    for (std::size_t i = 0; i < drivers_.size(); ++i) {
      auto able = drivers_[i]->capabilities();
      auto last = paths_.last_reason(owner, i);
      words += (i > 0 ? ", " : " ") + std::string{drivers_[i]->name()};
      words += !(a.on_device ? able.device_memory : able.host_memory)
        ? a.on_device ? " (not for memory of devices)" : " (for memory of devices only)"
        : last.empty() ? " (no way there)"
                       : " (failed: " + last + ")";
    }
    return {
      errc::peer_lost,
      words +
        "; both sides need one driver in transport.prefer that works between them, which "
        "`millrace doctor` tells on each"};
  }

  // Returns the best driver that reaches the owner and was not tried. A driver that failed lately
  // is chosen only if there is no other.
  std::optional<std::size_t> next_driver(const peer_id& owner, const attempt& a) const {
    std::optional<std::size_t> last_resort;
    for (std::size_t i = 0; i < drivers_.size(); ++i) {
      if (!is_candidate(i, owner, a))
        continue;
      if (!paths_.is_out(owner, i))
        return i;
      if (!last_resort)
        last_resort = i;
    }
    return last_resort;
  }

  void submit_by(std::size_t index, transfer t, attempt a) {
    a.tried |= std::uint64_t{1} << index;
    auto owner = t.remote.owner;
    // Kept only if another driver could take over. The copy shares the ops.
    std::optional<transfer> again;
    if (next_driver(owner, a))
      again = t;
    auto ended = [self = shared_from_this(), index, owner, again = std::move(again),
                  a = std::move(a)](result<transfer_report> report) mutable {
      MILLRACE_ASSERT(a.done); // else the driver reports for the second time
      if (!report)
        return self->fall_back(index, owner, std::move(again), std::move(a), report.error());
      if (self->paths_.moved(owner, index, a.bytes, report->carrier))
        log().info(
          "path works again peer={} driver={}", self->paths_.name_of(owner),
          self->drivers_[index]->name());
      again.reset();
      std::exchange(a.done, nullptr)(std::move(report));
    };
    drivers_[index]->submit(std::move(t), std::move(ended));
  }

  void fall_back(
    std::size_t index, const peer_id& owner, std::optional<transfer> again, attempt a,
    const status& why) {
    auto next = again && may_be_taken_on(why.code()) && paths_.is_open(owner)
      ? next_driver(owner, a)
      : std::nullopt;
    using failure = path_table::failure;
    auto how = !next                    ? failure::final
      : why.code() == errc::unsupported ? failure::refused
                                        : failure::broken;
    if (paths_.failed(owner, index, how, why))
      log().warn(
        "path changed peer={} from={} to={} why=\"{}\"", paths_.name_of(owner),
        drivers_[index]->name(), drivers_[*next]->name(), why.detail());
    if (next)
      return submit_by(*next, std::move(*again), std::move(a));
    again.reset();
    a.done(fail(why));
  }

  void tell_of(const std::shared_ptr<arena>& a) const {
    for (auto& d : drivers_)
      d->memory_made(a);
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
  path_table paths_;
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<arena>> shared_;
};

} // namespace

result<std::shared_ptr<fabric>> fabric::create(
  const fabric_options& options, const std::shared_ptr<net::io_loop>& loop) {
  auto made = std::make_shared<fabric_impl>(options);
  if (!std::has_single_bit(options.granule_bytes) || options.granule_bytes < 64u << 10)
    return fail(errc::invalid_argument, "granules have a power of two of bytes, 64 KiB at least");
  if (auto bad = made->movers()->check(); !bad.ok())
    return fail(bad);
  if (auto bad = made->add_drivers(options, loop); !bad.ok())
    return fail(bad);
  return made;
}

std::shared_ptr<fabric> fabric::with_drivers(
  const fabric_options& options, std::vector<std::shared_ptr<driver>> drivers) {
  auto made = std::make_shared<fabric_impl>(options);
  for (auto& d : drivers)
    made->add_driver(std::move(d));
  return made;
}

result<region> expose(const std::vector<tensor_view>& views, access_mode how) {
  auto list = gather_list::of(views, how);
  if (!list)
    return fail(list.error());
  return expose(std::move(*list), how);
}

} // namespace millrace::transport
