// Channels between processes of a world, and the driver that moves their bytes.
#include <millrace/core/planted_defect.hpp>
#include <millrace/tests/sim/network.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/local/local_driver.hpp>

#include <caf/atom.hpp>

#include <algorithm>
#include <deque>

namespace millrace::sim {

using net::channel;
using net::channel_handler;

using namespace std::chrono_literals;

namespace {

// The simulated driver moves an op at once. What a fabric copies by itself, small movers copy.
constexpr transport::copy_limits inline_only{
  .inline_bytes_max = ~0ull, .inline_local_bytes_max = ~0ull};
constexpr transport::copy_limits small_chunks{
  .chunk_bytes = 4096, .inline_bytes_max = 1024, .inline_local_bytes_max = 1024};

std::pair<std::uint32_t, std::uint32_t> pair_of(const process& a, const process& b) {
  return std::minmax(a.number, b.number);
}

net::peer_info peer_of(const process& p, std::string name, bool connected_by_us) {
  net::peer_info who;
  who.id = p.id;
  who.name = std::move(name);
  who.pid = p.number;
  who.protocol = 1;
  who.connected_by_us = connected_by_us;
  return who;
}

} // namespace

/// Both ends of one channel, and the frames on their way.
class connection : public std::enable_shared_from_this<connection> {
public:
  connection(simulated_network& n, std::uint64_t number) : network_(n), number_(number) {}

  struct side {
    process* of = nullptr;
    std::weak_ptr<simulated_loop> loop; // its callbacks run there
    std::shared_ptr<channel> end;
    std::shared_ptr<channel_handler> handler;
    bool open = true;
    bool gave_up = false;                        // by silence: the other side has not heard of it
    nanoseconds arrives{};                       // the last frame to this side
    std::deque<std::function<void()>> held_back; // while cut off
  };

  std::shared_ptr<channel> add_side(
    const std::shared_ptr<simulated_loop>& loop, net::peer_info peer,
    std::shared_ptr<channel_handler> handler, int which);
  side& at(int which) { return sides_[which]; }

  status send(
    int from, net::frame_kind kind, std::uint64_t correlation, std::span<const std::byte> body);
  void close(int from, status why);
  /// A side learns of the end, after the frames that are on their way to it.
  void end_of_other(int from, const status& why);
  /// The process of a side died, or its loop stopped. Its own handler is told, so that what it
  /// asked is answered.
  void died(int which);
  void cut();
  void healed();
  bool is_cut() const { return network_.is_cut(*sides_[0].of, *sides_[1].of); }

private:
  void at_side(int which, nanoseconds delay, std::function<void()> f) {
    if (auto loop = sides_[which].loop.lock())
      loop->after(delay, std::move(f));
  }
  void deliver(int to, std::function<void()> arrive);
  void ended(int which, const status& why);
  void forget_if_over();

  simulated_network& network_;
  const std::uint64_t number_;
  side sides_[2];
  std::uint64_t cut_count_ = 0;
};

namespace {

class end_of_channel final : public channel {
public:
  end_of_channel(std::weak_ptr<connection> c, int which, net::peer_info peer)
    : connection_(std::move(c)), which_(which), peer_(std::move(peer)) {}

  const net::peer_info& peer() const noexcept override { return peer_; }
  bool is_open() const noexcept override {
    auto c = connection_.lock();
    return c && c->at(which_).open;
  }
  net::channel_key derive_key(std::string_view) const override { return {}; }

  status send(
    net::frame_kind kind, std::uint64_t correlation, std::span<const std::byte> body,
    std::span<const int>) override {
    if (auto c = connection_.lock())
      return c->send(which_, kind, correlation, body);
    return {errc::peer_lost, "the connection has ended"};
  }

  void close(status why, std::uint32_t) override {
    if (auto c = connection_.lock())
      c->close(which_, std::move(why));
  }

private:
  std::weak_ptr<connection> connection_;
  int which_;
  net::peer_info peer_;
};

} // namespace

std::shared_ptr<channel> connection::add_side(
  const std::shared_ptr<simulated_loop>& loop, net::peer_info peer,
  std::shared_ptr<channel_handler> handler, int which) {
  auto& s = sides_[which];
  s.of = &loop->of();
  s.loop = loop;
  s.end = std::make_shared<end_of_channel>(weak_from_this(), which, std::move(peer));
  s.handler = std::move(handler);
  return s.end;
}

status connection::send(
  int from, net::frame_kind kind, std::uint64_t correlation, std::span<const std::byte> body) {
  if (!sides_[from].open)
    return {errc::peer_lost, "the connection has ended"};
  network_.count_frame();
  auto to = 1 - from;
  deliver(
    to,
    [self = shared_from_this(), to, kind, correlation,
     bytes = std::vector<std::byte>{body.begin(), body.end()}] {
      auto& s = self->sides_[to];
      if (!s.open)
        return;
      self->network_.in().note(
        static_cast<std::uint64_t>(kind)); // numbers of a process-wide table differ in length
      auto handler = s.handler;
      handler->on_frame(*s.end, net::frame{kind, correlation, bytes, {}});
    });
  return {};
}

// Frames of one direction arrive in their order.
void connection::deliver(int to, std::function<void()> arrive) {
  auto& s = sides_[to];
  auto now = network_.in().now();
  auto sent = now + network_.latency();
  if (!is_planted(defect::frames_reordered))
    sent = std::max(sent, s.arrives + 1ns);
  s.arrives = sent;
  at_side(to, sent - now, [self = shared_from_this(), to, arrive = std::move(arrive)] {
    auto& here = self->sides_[to];
    if (!here.open)
      return;
    if (self->is_cut() || !here.held_back.empty())
      here.held_back.push_back(arrive);
    else
      arrive();
  });
}

void connection::close(int from, status why) {
  auto& s = sides_[from];
  if (!std::exchange(s.open, false))
    return;
  at_side(from, 0ns, [self = shared_from_this(), from, why] { self->ended(from, why); });
  end_of_other(from, why.ok() ? status{errc::peer_lost, "the peer closed"} : why);
}

void connection::end_of_other(int from, const status& why) {
  auto to = 1 - from;
  deliver(to, [self = shared_from_this(), to, why] {
    if (std::exchange(self->sides_[to].open, false))
      self->ended(to, why);
  });
}

void connection::ended(int which, const status& why) {
  auto& s = sides_[which];
  auto handler = std::exchange(s.handler, nullptr);
  s.held_back.clear();
  auto keep = shared_from_this();
  if (handler)
    handler->on_close(*s.end, why);
  forget_if_over();
}

void connection::died(int which) {
  auto& s = sides_[which];
  s.open = false;
  s.held_back.clear();
  auto handler = std::exchange(s.handler, nullptr);
  if (handler)
    end_of_other(which, {errc::peer_lost, "the process {} ended", s.of->name});
  network_.in().as(*s.of, [&] {
    if (handler)
      handler->on_close(*s.end, {errc::peer_lost, "this process has ended"});
    handler.reset();
  });
  forget_if_over();
}

void connection::cut() {
  auto count = ++cut_count_;
  for (int which : {0, 1})
    at_side(which, simulated_network::silence_max, [self = shared_from_this(), which, count] {
      if (
        self->cut_count_ != count || !self->is_cut() ||
        !std::exchange(self->sides_[which].open, false))
        return;
      self->sides_[which].gave_up = true;
      self->ended(which, {errc::peer_lost, "nothing was heard of the peer"});
    });
}

// Both sides give up at one instant, but the cut may be healed between them. Then the second one
// gets what was held back, and after it the end.
void connection::healed() {
  ++cut_count_;
  for (int which : {0, 1})
    if (std::exchange(sides_[which].gave_up, false))
      end_of_other(which, {errc::peer_lost, "the peer closed"});
  for (int which : {0, 1})
    at_side(which, 1us, [self = shared_from_this(), which] {
      auto& s = self->sides_[which];
      while (!s.held_back.empty() && !self->is_cut()) {
        auto arrive = std::move(s.held_back.front());
        s.held_back.pop_front();
        arrive();
      }
    });
}

void connection::forget_if_over() {
  auto over = [](const side& s) { return !s.open && !s.handler; };
  if (over(sides_[0]) && over(sides_[1]))
    network_.open_.erase(number_);
}

class simulated_network::listener final : public net::listener {
public:
  listener(std::weak_ptr<simulated_network> n, std::string address)
    : network_(std::move(n)), address_(std::move(address)) {}
  ~listener() override { stop(); }

  const std::string& address() const noexcept override { return address_; }
  void stop() override {
    auto n = network_.lock();
    if (n && !std::exchange(stopped_, true))
      n->listening_.erase(address_);
  }

private:
  std::weak_ptr<simulated_network> network_;
  std::string address_;
  bool stopped_ = false;
};

simulated_network::simulated_network(world& w) : world_(w) {
  world_.on_death([this](process& p) { died(p); });
  runtime::simulated_platform = this;
}

simulated_network::~simulated_network() { runtime::simulated_platform = nullptr; }

bool simulated_network::is_cut(const process& a, const process& b) const {
  return cuts_.contains(pair_of(a, b)) || still_.contains(a.number) || still_.contains(b.number);
}

void simulated_network::cut(process& a, process& b) {
  if (!cuts_.insert(pair_of(a, b)).second)
    return;
  for (auto& [number, c] : open_)
    if (c->is_cut())
      c->cut();
}

std::shared_ptr<switch_port> simulated_network::bound_port(
  process& p, const port_options& options) {
  return ports_[p.number] = std::make_shared<switch_port>(world_, p, options);
}

std::shared_ptr<switch_port> simulated_network::port_of(const process& p) const {
  auto found = ports_.find(p.number);
  return found == ports_.end() ? nullptr : found->second;
}

void simulated_network::go_on(process& p) {
  if (still_.erase(p.number) == 0)
    return;
  for (auto& [number, c] : open_)
    if (!c->is_cut())
      c->healed();
}

void simulated_network::heal_all() {
  cuts_.clear();
  still_.clear();
  for (auto& [number, c] : open_)
    c->healed();
}

void simulated_network::died(process& p) {
  std::erase_if(listening_, [&](auto& entry) { return entry.second->by == &p; });
  end_channels_of(p);
}

void simulated_network::end_channels_of(const process& p) {
  for (auto& [number, c] : std::map{open_})
    for (int which : {0, 1})
      if (c->at(which).of == &p)
        c->died(which);
}

result<std::shared_ptr<net::io_loop>> simulated_network::make_loop(const net::io_loop_options&) {
  auto loop = std::make_shared<simulated_loop>(world_);
  loop->on_stop = [this, raw = loop.get()] { end_channels_of(raw->of()); };
  return loop;
}

result<std::shared_ptr<net::listener>> simulated_network::listen(
  const std::shared_ptr<net::io_loop>& loop, const net::listener_options& where,
  const net::channel_options& options, net::accept_function accept) {
  auto entry = std::make_shared<listening>(listening{
    std::static_pointer_cast<simulated_loop>(loop), &world_.current(), options.local_name,
    std::move(accept)});
  if (!listening_.emplace(where.address, std::move(entry)).second)
    return fail(errc::already_exists, "another process listens at {}", where.address);
  return std::make_shared<listener>(weak_from_this(), where.address);
}

void simulated_network::connect(
  const std::shared_ptr<net::io_loop>& loop, const std::string& address,
  const net::channel_options& options, std::shared_ptr<channel_handler> handler,
  completion<std::shared_ptr<channel>> done) {
  // If the loop drops it, the caller still gets its answer.
  struct attempt {
    completion<std::shared_ptr<channel>> done;
    ~attempt() { end(fail(errc::unavailable, "the I/O loop has stopped")); }
    void end(result<std::shared_ptr<channel>> outcome) {
      if (auto f = std::exchange(done, nullptr))
        f(std::move(outcome));
    }
  };
  auto one = std::make_shared<attempt>();
  one->done = std::move(done);
  auto from = std::static_pointer_cast<simulated_loop>(loop);
  // Half of the time for the way there.
  from->after(latency(), [this, from, address, options, handler = std::move(handler), one] {
    if (!from->of().alive())
      return one->end(fail(errc::unavailable, "this process has ended"));
    auto found = listening_.find(address);
    if (found != listening_.end() && is_cut(from->of(), *found->second->by)) {
      from->run_after(options.handshake_timeout_ms, [address, one] {
        one->end(fail(errc::deadline_exceeded, "connecting to {}: no answer in time", address));
      });
      return;
    }
    auto made = shake_hands(from, address, options, handler);
    if (!made)
      return one->end(fail(made.error()));
    from->after(latency(), [c = *made, one] {
      auto& mine = c->at(0);
      if (!mine.handler) // it has ended meanwhile
        return one->end(fail(errc::peer_lost, "the connection has ended"));
      mine.handler->on_open(mine.end);
      one->end(mine.end);
    });
    // Nothing arrives before the channel is open.
    (*made)->at(0).arrives = world_.now() + latency_max;
  });
}

// At the listener's process: both sides exist from now on.
result<std::shared_ptr<connection>> simulated_network::shake_hands(
  const std::shared_ptr<simulated_loop>& from, const std::string& address,
  const net::channel_options& options, std::shared_ptr<channel_handler> handler) {
  auto found = listening_.find(address);
  if (found == listening_.end())
    return fail(
      errc::unavailable, "connecting to {}: no process listens there; is the service running?",
      address);
  auto there = found->second;
  if (!options.expected_name.empty() && there->name != options.expected_name)
    return fail(
      errc::permission_denied,
      "node {} answered instead of node {}; check which node has this address", there->name,
      options.expected_name);
  auto c = std::make_shared<connection>(*this, ++last_connection_);
  return world_.as(*there->by, [&]() -> result<std::shared_ptr<connection>> {
    auto who = peer_of(from->of(), options.local_name, false);
    auto accepted = there->accept(who);
    if (!accepted)
      return fail(accepted.error().within(
        fmt::format("connecting to {}: {} refused the connection", address, there->name)));
    c->add_side(from, peer_of(*there->by, there->name, true), std::move(handler), 0);
    auto end = c->add_side(there->loop.lock(), std::move(who), *accepted, 1);
    open_.emplace(last_connection_, c);
    (*accepted)->on_open(end);
    return c;
  });
}

caf::actor_system_config simulated_network::make_caf_config() {
  caf::actor_system_config config;
  config.set("scheduler.policy", caf::atom("testing"));
  return config;
}

namespace {

/// Moves the ops of a transfer one after the other, each in an event of its own.
class simulated_driver final : public transport::peer_driver,
                               public std::enable_shared_from_this<simulated_driver> {
public:
  simulated_driver(simulated_network& n, process& p, bool maps)
    : network_(n), process_(p), maps_(maps),
      local_(transport::make_local_driver(
        {.movers = std::make_shared<transport::mover_pool>(1), .limits = inline_only})) {}

  ~simulated_driver() override {
    for (auto& [number, one] : std::exchange(moving_, {}))
      end(*one, fail(errc::unavailable, "the fabric ends"));
  }

  std::string_view name() const noexcept override { return "simulated"; }
  transport::driver_capabilities capabilities() const noexcept override { return {.maps = maps_}; }
  bool reaches(const peer_id& owner) const noexcept override {
    return owner == process_.id || peers_.contains(owner);
  }

  void peer_opened(const std::shared_ptr<channel>& c) override { ++peers_[c->peer().id]; }

  void peer_closed(channel& c, const status& why) override {
    auto& id = c.peer().id;
    if (auto found = peers_.find(id); found == peers_.end() || --found->second > 0)
      return;
    peers_.erase(id);
    std::vector<std::shared_ptr<moving>> lost;
    std::erase_if(moving_, [&](auto& one) {
      auto theirs = one.second->what.remote.owner == id;
      if (theirs)
        lost.push_back(one.second);
      return theirs;
    });
    for (auto& one : lost)
      end(*one, fail(errc::peer_lost, why.detail()));
  }

  void on_message(channel&, std::span<const std::byte>, std::vector<net::unique_fd>) override {}

  void submit(transport::transfer t, completion<transport::transfer_report> done) override {
    auto one = std::make_shared<moving>();
    one->what = std::move(t);
    one->done = std::move(done);
    moving_.emplace(++last_, one);
    auto port = network_.port_of(process_);
    if (port && is_read(*one)) {
      one->has_come = true;
      return port->send(one->what.remote.owner, bytes_of(*one), moves(last_, one));
    }
    if (network_.in().random.below(1000) >= network_.stalls_per_mille)
      step(last_, one);
  }

  // The question and the answer take as long as an empty read, and are lost as it is.
  void map(const bulk_handle& remote, access_mode how, completion<transport::mapped_region> done)
    override {
    auto asked = [local = local_, remote, how, done = std::move(done)](auto outcome) {
      return outcome ? local->map(remote, how, done) : done(fail(outcome.error()));
    };
    submit({.dir = transport::direction::read, .remote = remote}, std::move(asked));
  }

private:
  struct moving {
    transport::transfer what;
    completion<transport::transfer_report> done;
    std::size_t next = 0;
    bool has_come = false; // all of it, by the port of a switch
    transport::transfer_report report{{}, "simulated"};
  };

  // Some are slow, so that much happens before they read or write.
  void step(std::uint64_t number, const std::shared_ptr<moving>& one) {
    auto takes = network_.latency() * (network_.in().random.percent(20) ? 30 : 1);
    network_.in().after(process_, one->has_come ? 0ns : takes, moves(number, one));
  }

  std::function<void()> moves(std::uint64_t number, const std::shared_ptr<moving>& one) {
    return [weak = weak_from_this(), number, one] {
      if (auto self = weak.lock(); self && self->moving_.contains(number))
        self->move_next(number, one);
    };
  }

  bool is_read(const moving& one) const {
    auto& what = one.what;
    return what.dir == transport::direction::read && !what.ops.empty() &&
      what.remote.owner != process_.id;
  }
  static std::uint64_t bytes_of(const moving& one) {
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < one.what.ops.size(); ++i)
      all += one.what.ops[i].length;
    return all;
  }

  void move_next(std::uint64_t number, const std::shared_ptr<moving>& one) {
    auto& what = one->what;
    if (auto* owner = network_.in().find(what.remote.owner);
        owner && network_.is_cut(process_, *owner))
      return step(number, one);
    transport::transfer part;
    part.dir = what.dir;
    part.remote = what.remote;
    part.remote.owner = process_.id;
    part.digests = what.digests;
    if (one->next < what.ops.size())
      part.ops = {what.ops[one->next++]};
    std::optional<result<transport::transfer_report>> outcome;
    local_->submit(std::move(part), [&](result<transport::transfer_report> r) { outcome = r; });
    if (*outcome) {
      auto& digests = (*outcome)->digests;
      one->report.digests.insert(one->report.digests.end(), digests.begin(), digests.end());
      if (one->next < what.ops.size())
        return step(number, one);
      outcome = one->report;
    }
    moving_.erase(number);
    end(*one, std::move(*outcome));
  }

  static void end(moving& one, result<transport::transfer_report> outcome) {
    one.what.hold.reset();
    std::exchange(one.done, nullptr)(std::move(outcome));
  }

  simulated_network& network_;
  process& process_;
  const bool maps_;
  std::shared_ptr<transport::driver> local_;
  std::map<peer_id, int> peers_; // with so many channels
  std::map<std::uint64_t, std::shared_ptr<moving>> moving_;
  std::uint64_t last_ = 0;
};

} // namespace

result<std::shared_ptr<transport::fabric>> simulated_network::make_fabric(
  const transport::fabric_options& options, const std::shared_ptr<net::io_loop>&) {
  auto chosen = options;
  chosen.movers = 2;
  chosen.limits = small_chunks;
  auto& here = world_.current();
  return transport::fabric::with_drivers(
    chosen, {std::make_shared<simulated_driver>(*this, here, !elsewhere_.contains(here.number))});
}

} // namespace millrace::sim
