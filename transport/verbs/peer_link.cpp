// The handshake between two links, and the messages and events for the rails and sides.
// Called by the driver; runs on the completion thread.
#include <millrace/core/log.hpp>
#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/verbs/peer_link.hpp>

#include <algorithm>

namespace millrace::transport::verbs {

std::shared_ptr<peer_link> peer_link::make(std::shared_ptr<net::channel> c, link_parts parts) {
  std::shared_ptr<peer_link> made{new peer_link{std::move(c), std::move(parts)}};
  made->asking_.belong_to(made);
  made->lending_.belong_to(made);
  return made;
}

peer_link::peer_link(std::shared_ptr<net::channel> c, link_parts parts)
  : channel_(std::move(c)), parts_(std::move(parts)), lending_(channel_, parts_, rails_),
    asking_(channel_, parts_, rails_) {
  for (auto& d : parts_.sources.devices) {
    ours_.rails.push_back(d->now().value_or(device::address{}).rail);
    ours_.rails.back().cm = parts_.cm && parts_.cm_reaches[ours_.rails.size() - 1];
  }
  // A port may have lost its address since the start.
  for (auto& r : ours_.rails) {
    r.mtu = std::max(r.mtu, 256u);
    r.message_bytes_max = std::max<std::uint64_t>(r.message_bytes_max, r.mtu);
  }
}

void peer_link::open() {
  send_or_close(*channel_, message_kind::hello, ours_);
  parts_.thread->post([self = shared_from_this()] {
    if (!self->closed_)
      self->parts_.thread->add(self);
  });
}

// Hands the message to `f` on the completion thread.
template <class Message, class F>
status peer_link::deliver(wire_reader& reader, std::uint64_t size_bytes, F f) {
  Message m;
  if (!reader(m))
    return {};
  if (auto bad = check(m); !bad.ok())
    return bad;
  auto weight = size_bytes + sizeof(Message);
  if (backlog_bytes_ + weight > parts_.options.backlog_bytes_max)
    return {errc::protocol_error, "more at once than verbs.backlog_max allows"};
  backlog_bytes_ += weight;
  parts_.thread->post([self = shared_from_this(), weight, f, m = std::move(m)] {
    self->backlog_bytes_ -= weight;
    if (!self->closed_)
      f(*self, m);
  });
  return {};
}

status peer_link::take(std::span<const std::byte> body) {
  return take_message<message_kind>(
    body, [&](auto kind, auto& reader) { return take(kind, reader, body.size()); });
}

status peer_link::take(message_kind kind, wire_reader& reader, std::uint64_t size_bytes) {
  switch (kind) {
  case message_kind::hello:
    return deliver<hello>(reader, size_bytes, [](peer_link& l, auto& m) { l.on_hello(m); });
  case message_kind::connect:
    return deliver<connect>(reader, size_bytes, [](peer_link& l, auto& m) {
      if (auto* r = l.rails_.find(m.pair))
        r->on_connect(m);
    });
  case message_kind::ready:
    return deliver<ready>(reader, size_bytes, [](peer_link& l, auto& m) {
      if (auto* r = l.rails_.find(m.pair))
        r->on_ready(m);
    });
  case message_kind::lost:
    return deliver<lost>(reader, size_bytes, [](peer_link& l, auto& m) {
      if (auto* r = l.rails_.find(m.pair))
        r->on_lost(m);
    });
  case message_kind::granted:
    return deliver<granted>(
      reader, size_bytes, [](peer_link& l, auto& m) { l.asking_.on_granted(m); });
  case message_kind::withdrawn:
    return deliver<withdrawn>(
      reader, size_bytes, [](peer_link& l, auto& m) { l.asking_.on_withdrawn(m); });
  case message_kind::ask: {
    ask m;
    return reader(m) ? lending_.on_ask(m) : status{};
  }
  }
  return {}; // a message kind of a later version
}

void peer_link::on_hello(const hello& m) {
  if (std::exchange(greeted_, true))
    return;
  // Both sides number the rails in the order of the side that connected the channel.
  auto first = peer().connected_by_us;
  auto pairs = first ? pair_rails(ours_.rails, m.rails) : pair_rails(m.rails, ours_.rails);
  bool differ = false;
  for (std::uint32_t i = 0; i < pairs.size(); ++i) {
    auto mine = first ? pairs[i].first : pairs[i].second;
    auto theirs = first ? pairs[i].second : pairs[i].first;
    auto we_would = ours_.rails[mine].cm, they_would = m.rails[theirs].cm;
    differ |= we_would != they_would;
    rail::parts p{
      parts_.sources.devices[mine],
      mine,
      i,
      net::name_and_host(peer()),
      parts_.options,
      parts_.thread,
      parts_.setup,
      we_would && they_would ? parts_.cm : nullptr,
      !first,
      weak_from_this()};
    auto made = std::make_unique<rail>(*this, std::move(p));
    auto& r = *made;
    rails_.add(std::move(made));
    r.begin();
  }
  if (differ)
    log().info(
      "queue pairs are connected over the channel peer={} why=\"only one side has verbs.connect: "
      "rdma_cm and an IP address at its device\"",
      peer().name);
  if (pairs.empty())
    log().debug("no RDMA device of the same network peer={}", peer().name);
}

// Uses a mover, since revoking windows waits for memory that is being registered, and takes time if
// there are many windows.
void peer_link::close(const status& why, std::function<void()> then) {
  reachable_ = false;
  lending_.shut();
  parts_.movers->submit(
    1,
    [self = shared_from_this(), why, then = std::move(then)](std::uint32_t) {
      self->lending_.clear();
      self->parts_.thread->post([self, why, then] {
        self->close_now(why);
        then();
      });
    },
    [] {});
}

void peer_link::close_now(const status& why) {
  if (std::exchange(closed_, true))
    return;
  reachable_ = false;
  lending_.close();
  rails_.close();
  parts_.thread->remove(this);
  asking_.close(why);
}

bool peer_link::serve() {
  auto happened = rails_.serve();
  if (happened || asking_.take_dirty()) {
    happened |= asking_.pump();
    reachable_ = rails_.some_hopeful();
  }
  return happened;
}

bool peer_link::tick(time_point now) {
  auto soon = asking_.has_transfers();
  soon |= rails_.tick(now);
  rails_.balance(parts_.options.queue_depth - 1);
  asking_.tick(now);
  std::lock_guard guard{mutex_};
  rail_stats_ = rails_.stats();
  return soon;
}

void peer_link::rail_changed(rail&) {
  lending_.set_live_pairs(rails_.live_pairs(parts_.sources.devices));
  asking_.rails_changed();
}

verbs_stats peer_link::stats() const {
  verbs_stats out;
  out.grants = lending_.grants();
  out.windows = lending_.windows();
  std::lock_guard guard{mutex_};
  out.rails = rail_stats_;
  return out;
}

} // namespace millrace::transport::verbs
