// Keeps two sides for every peer: one that asks the peer, and one that lends to it.
#include <millrace/core/digest.hpp>
#include <millrace/net/loop/sweep_timer.hpp>
#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/peer_links.hpp>
#include <millrace/transport/staged/asking_side.hpp>
#include <millrace/transport/staged/lending_side.hpp>
#include <millrace/transport/staged/staged_driver.hpp>

#include <algorithm>

namespace millrace::transport {

namespace {

using namespace staged;

constexpr std::uint32_t sweep_ms = 1000; // how soon a late answer is noticed

struct peer_sides {
  std::shared_ptr<net::channel> to;
  std::shared_ptr<asking_side> asking;
  std::shared_ptr<lending_side> lending;
};

class staged_driver : public peer_driver, public std::enable_shared_from_this<staged_driver> {
public:
  staged_driver(
    std::shared_ptr<net::io_loop> loop, std::shared_ptr<mover_pool> movers,
    const staged_options& options, asking_side::carrier move)
    : options_(options), move_(std::move(move)),
      pool_(std::make_shared<chunk_pool>(options_, std::move(movers))),
      sweeps_(std::move(loop), sweep_ms) {}

  std::string_view name() const noexcept override { return "staged"; }
  driver_capabilities capabilities() const noexcept override {
    return {.host_memory = false, .device_memory = true};
  }
  bool reaches(const peer_id& owner) const noexcept override {
    auto asking = asking_of(owner);
    return asking && asking->ready();
  }

  void peer_opened(const std::shared_ptr<net::channel>& c) override {
    // Longer than the owner's own timeouts: a request waits for at most one hold, and a chunk is
    // kept for one more.
    std::chrono::milliseconds patience{2 * std::uint64_t{options_.hold_timeout_ms}};
    links_.add(
      *c,
      std::make_shared<peer_sides>(peer_sides{
        c, std::make_shared<asking_side>(c, move_, patience, options_.transfers_max),
        std::make_shared<lending_side>(c, pool_, options_)}));
    auto chunks = std::min<std::uint64_t>(options_.chunks_max, pool_->chunks());
    hello m{protocol_version, options_.chunk_bytes, static_cast<std::uint32_t>(chunks)};
    send_or_close(*c, message_kind::hello, m);
    arm_sweep();
  }

  void peer_closed(net::channel& c, const status& why) override {
    if (auto link = links_.take(c)) {
      link->lending->close();
      link->asking->close(why);
    }
  }

  void submit(transfer t, completion<transfer_report> done) override {
    if (!t.remote.on_device)
      return done(fail(errc::unsupported, "memory of the host needs no staging"));
    auto asking = asking_of(t.remote.owner);
    if (!asking)
      return done(fail(errc::peer_lost, "no connection to the process that owns the memory"));
    asking->start(std::move(t), std::move(done));
  }

  void on_message(
    net::channel& c, std::span<const std::byte> body, std::vector<net::unique_fd>) override {
    auto link = links_.find(c);
    if (!link)
      return;
    auto bad = take_message<message_kind>(
      body, [&](auto kind, auto& reader) { return take(*link, kind, reader); });
    if (!bad.ok())
      c.close(bad.within("a staged message"));
  }

  std::optional<driver_report> report() const override {
    auto now = pool_->now();
    if (now.chunks == 0)
      return std::nullopt;
    return driver_report{
      "staged", {{"chunks", now.chunks}, {"free", now.free}, {"waiting", now.waiting}}, {}};
  }

private:
  std::shared_ptr<asking_side> asking_of(const peer_id& owner) const noexcept {
    auto link = links_.to(owner, [](auto& l) { return l.to->is_open(); });
    return link ? link->asking : nullptr;
  }

  static status take(const peer_sides& link, message_kind kind, wire_reader& reader) {
    switch (kind) {
    case message_kind::hello: {
      hello m;
      return reader(m) ? link.asking->on_hello(m) : status{};
    }
    case message_kind::stage: {
      stage m;
      return reader(m) ? link.lending->on_stage(std::move(m)) : status{};
    }
    case message_kind::staged: {
      transport::staged::staged m;
      if (reader(m))
        link.asking->on_staged(m);
      return {};
    }
    case message_kind::commit: {
      commit m;
      return reader(m) ? link.lending->on_commit(m) : status{};
    }
    case message_kind::committed: {
      committed m;
      if (reader(m))
        link.asking->on_committed(m);
      return {};
    }
    case message_kind::release: {
      release m;
      if (reader(m))
        link.lending->on_release(m);
      return {};
    }
    }
    return {}; // a message kind of a later version
  }

  void arm_sweep() { sweeps_.arm(weak_from_this(), &staged_driver::sweep); }

  void sweep() {
    auto links = links_.all();
    auto now = steady_clock::now();
    for (auto& link : links) {
      link->asking->expire(now);
      link->lending->expire(now);
    }
    if (!links.empty())
      arm_sweep();
  }

  const staged_options options_;
  const asking_side::carrier move_;
  const std::shared_ptr<chunk_pool> pool_;
  peer_links<peer_sides> links_;
  net::sweep_timer sweeps_;
};

} // namespace

result<std::shared_ptr<peer_driver>> make_staged_driver(
  const driver_deps& deps, const staged_options& options) {
  return std::make_shared<staged_driver>(deps.loop, deps.movers, options, deps.move);
}

} // namespace millrace::transport
