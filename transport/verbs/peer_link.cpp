// Messages of the peer, and the owner's side: what it asks for is opened to it.
// Called by the driver; lives on the completion thread.
#include <millrace/core/log.hpp>
#include <millrace/transport/verbs/peer_link.hpp>

#include <algorithm>

namespace millrace::transport::verbs {

peer_link::peer_link(std::shared_ptr<net::channel> c, link_parts parts)
  : channel_(std::move(c)), parts_(std::move(parts)),
    book_(std::make_shared<grant_book>(
      parts_.sources, parts_.options, [c = std::weak_ptr{channel_}](std::uint64_t region) {
        byte_buffer body;
        wire_writer{body}(std::string{"verbs"}, message_kind::withdrawn, withdrawn{region});
        if (auto open = c.lock())
          static_cast<void>(open->send(net::frame_kind::driver, 0, body));
      })) {
  pieces_max_ = parts_.options.sge_max;
  for (auto& d : parts_.sources.devices) {
    ours_.rails.push_back(d->now().value_or(device::address{}).rail);
    ours_.rails.back().cm = parts_.cm && parts_.cm_reaches[ours_.rails.size() - 1];
    pieces_max_ = std::min<std::size_t>(pieces_max_, d->sge_max());
  }
  // Its address may have gone since the start.
  for (auto& r : ours_.rails) {
    r.mtu = std::max(r.mtu, 256u);
    r.message_bytes_max = std::max<std::uint64_t>(r.message_bytes_max, r.mtu);
  }
}

template <class Message>
status peer_link::try_send(message_kind kind, const Message& m) {
  byte_buffer body;
  wire_writer{body}(std::string{"verbs"}, kind, m);
  return channel_->send(net::frame_kind::driver, 0, body);
}

// Somebody waits for every message: better to have no channel than one that lost some.
template <class Message>
void peer_link::send(message_kind kind, const Message& m) {
  if (auto sent = try_send(kind, m); !sent.ok() && sent.code() != errc::peer_lost)
    channel_->close(
      {errc::peer_lost, "telling " + peer().name + " about RDMA: " + sent.to_string()});
}

template void peer_link::send(message_kind, const connect&);
template void peer_link::send(message_kind, const ready&);
template void peer_link::send(message_kind, const lost&);
template void peer_link::send(message_kind, const ask&);

void peer_link::open() {
  send(message_kind::hello, ours_);
  parts_.thread->post([self = shared_from_this()] {
    if (!self->closed_)
      self->parts_.thread->add(self);
  });
}

template <class Message>
status peer_link::deliver(
  wire_reader& reader, std::uint64_t size_bytes, void (peer_link::*f)(Message)) {
  Message m;
  if (!reader(m))
    return {};
  if (auto bad = check(m); !bad.ok())
    return bad;
  auto weight = size_bytes + sizeof(Message);
  if (backlog_bytes_ + weight > parts_.options.backlog_bytes_max)
    return {errc::protocol_error, "more at once than verbs.backlog_max allows"};
  backlog_bytes_ += weight;
  parts_.thread->post([self = shared_from_this(), weight, f, m = std::move(m)]() mutable {
    self->backlog_bytes_ -= weight;
    if (!self->closed_)
      (*self.*f)(std::move(m));
  });
  return {};
}

status peer_link::take(std::span<const std::byte> body) {
  wire_reader reader{body};
  message_kind kind{};
  reader(kind);
  status bad;
  switch (kind) {
  case message_kind::hello:
    bad = deliver(reader, body.size(), &peer_link::on_hello);
    break;
  case message_kind::connect:
    bad = deliver(reader, body.size(), &peer_link::on_connect);
    break;
  case message_kind::ready:
    bad = deliver(reader, body.size(), &peer_link::on_ready);
    break;
  case message_kind::lost:
    bad = deliver(reader, body.size(), &peer_link::on_lost);
    break;
  case message_kind::granted:
    bad = deliver(reader, body.size(), &peer_link::on_granted);
    break;
  case message_kind::withdrawn:
    bad = deliver(reader, body.size(), &peer_link::on_withdrawn);
    break;
  case message_kind::ask: {
    ask m;
    bad = reader(m) ? on_ask(m) : status{};
    break;
  }
  default:
    return {}; // a kind of a later version
  }
  if (bad.ok() && !reader.ok())
    bad = {errc::protocol_error, reader.fault()};
  return bad;
}

void peer_link::on_hello(hello m) {
  if (std::exchange(greeted_, true))
    return;
  // Both sides count the rails of the one that connected first.
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
    rails_.push_back(std::make_unique<rail>(*this, std::move(p)));
    rails_.back()->begin();
  }
  if (differ)
    log().info(
      "queue pairs are connected over the channel peer={} why=\"only one side has verbs.connect: "
      "rdma_cm and an IP address at its device\"",
      peer().name);
  if (pairs.empty())
    log().debug("no RDMA device of the same network peer={}", peer().name);
}

rail* peer_link::find_rail(std::uint32_t pair) {
  return pair < rails_.size() ? rails_[pair].get() : nullptr;
}

void peer_link::on_connect(connect m) {
  if (auto* r = find_rail(m.pair))
    r->on_connect(m);
}

void peer_link::on_ready(ready m) {
  if (auto* r = find_rail(m.pair))
    r->on_ready(m);
}

void peer_link::on_lost(lost m) {
  if (auto* r = find_rail(m.pair))
    r->on_lost(m);
}

// -- the owner's side -----------------------------------------------------------------------------

// On the loop: whoever has no right to it learns so at once.
status peer_link::on_ask(const ask& m) {
  if (auto bad = check(m); !bad.ok())
    return bad;
  auto how = access_for(static_cast<direction>(m.dir));
  auto memory = find_region(m.region, m.key, how, memory_reach::any);
  if (!memory) {
    refuse(m.number, memory.error());
    return {};
  }
  if (auto bad = admit(m); !bad.ok()) {
    refuse(m.number, bad);
    return {};
  }
  prepare(std::make_shared<question>(m, std::move(*memory)));
  return {};
}

// Honest peers ask for a region again when they have been answered.
status peer_link::admit(const ask& m) {
  std::lock_guard guard{mutex_};
  if (answering_.size() >= parts_.options.grants_max)
    return {errc::unsupported, "too many regions asked for at once"};
  if (!answering_.insert(m.region).second)
    return {errc::unsupported, "that region is being opened already"};
  return {};
}

// What the peer asked, until it is answered.
struct peer_link::question {
  ask m;
  region_ref memory;
  question(const ask& asked, region_ref r) : m(asked), memory(std::move(r)) {}
};

// The windows of one answer on their way to being bound.
struct peer_link::bind_round {
  question_ptr of;
  std::shared_ptr<grant> g;
  std::vector<pair_grant> pairs;
  std::vector<bool> failed; // of the pairs
  std::size_t missing = 1;
};

void peer_link::prepare(question_ptr q) {
  parts_.movers->submit(
    1,
    [self = shared_from_this(), q](std::uint32_t) {
      auto made = self->book_->prepare(
        q->m.region, q->memory, static_cast<direction>(q->m.dir), self->live_pairs());
      self->parts_.thread->post([self, q, made = std::move(made)] {
        made ? self->bind(q, *made) : self->answer(*q, fail(made.error()));
      });
    },
    [] {});
}

void peer_link::bind(const question_ptr& q, grant_book::prepared p) {
  auto round = std::make_shared<bind_round>();
  round->of = q;
  round->g = std::move(p.g);
  round->pairs = std::move(p.unbound);
  round->failed.resize(round->pairs.size());
  for (std::size_t i = 0; i < round->pairs.size(); ++i) {
    auto& over = round->pairs[i].over;
    auto* r = find_rail(over.pair);
    if (closed_ || !r || !r->live() || r->generation() != over.generation) {
      round->failed[i] = true;
      continue;
    }
    for (auto& key : round->pairs[i].keys) {
      if (!key->needs_binding())
        continue;
      ++round->missing;
      r->bind(key, [this, round, i](const status& outcome) {
        if (!outcome.ok())
          round->failed[i] = true;
        bound(*round);
      });
    }
  }
  bound(*round);
}

void peer_link::bound(bind_round& round) {
  if (--round.missing > 0)
    return;
  std::vector<pair_grant> good;
  for (std::size_t i = 0; i < round.pairs.size(); ++i)
    if (!round.failed[i])
      good.push_back(std::move(round.pairs[i]));
  auto m = book_->answer(round.g, std::move(good));
  // A queue pair was joined since the keys were made. The peer asks anew when one of its own comes up, but that may
  // have been before this answer reaches it.
  if (m && !covers_live_pairs(*m))
    return prepare(round.of);
  answer(*round.of, std::move(m));
}

bool peer_link::covers_live_pairs(const granted& m) const {
  return std::all_of(rails_.begin(), rails_.end(), [&](auto& r) {
    return !r->live() || std::any_of(m.pairs.begin(), m.pairs.end(), [&](auto& p) {
      return p.pair == r->pair() && p.generation == r->generation();
    });
  });
}

void peer_link::answer(const question& q, result<granted> m) {
  {
    std::lock_guard guard{mutex_};
    answering_.erase(q.m.region);
  }
  if (!m)
    return refuse(q.m.number, m.error());
  m->number = q.m.number;
  auto sent = try_send(message_kind::granted, *m);
  // Keys of many ranges over many queue pairs may be more than the peer takes at once.
  if (!sent.ok())
    refuse(q.m.number, {errc::unsupported, sent.detail()});
}

void peer_link::refuse(std::uint64_t number, const status& why) {
  granted m;
  m.number = number;
  m.code = static_cast<std::uint8_t>(why.code());
  m.detail = why.detail();
  send(message_kind::granted, m);
}

std::vector<live_pair> peer_link::live_pairs() const {
  std::lock_guard guard{mutex_};
  return live_;
}

// -- the life of the link -------------------------------------------------------------------------

// Taking windows back waits for memory that is being registered, and takes its time where there are many.
void peer_link::close(const status& why, std::function<void()> then) {
  reachable_ = false;
  book_->shut();
  parts_.movers->submit(
    1,
    [self = shared_from_this(), why, then = std::move(then)](std::uint32_t) {
      self->book_->clear();
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
  book_->shut();
  book_->clear();
  for (auto& r : rails_)
    r->close();
  parts_.thread->remove(this);
  // A mover may still be reading for digests; its share keeps the memory.
  ended_.clear();
  for (auto& t : std::exchange(transfers_, {}))
    t->done(fail(why));
  known_.clear();
  questions_.clear();
}

void peer_link::arm() {
  for (auto& r : rails_)
    r->arm();
}

bool peer_link::tick(time_point now) {
  bool soon = !transfers_.empty();
  for (auto& r : rails_)
    soon |= r->tick(now);
  for (auto& t : transfers_)
    if (now - t->moved_at > std::chrono::milliseconds{parts_.options.op_timeout_ms})
      look_at_stuck(t);
  balance();
  reap();
  std::lock_guard guard{mutex_};
  rail_stats_.clear();
  for (auto& r : rails_)
    rail_stats_.push_back(r->stats());
  return soon;
}

// One whose bytes are there waits for nothing but our own movers. The caller's deadline is another matter, and may
// leave time for another driver.
void peer_link::look_at_stuck(const transfer_ptr& t) {
  if (t->in_flight > 0 || t->digesting)
    return;
  if (t->asking)
    give_up_question(name_of(*t));
  fail_transfer(
    t,
    {errc::unavailable,
     "nothing moved with " + peer().name + " within " +
       std::to_string(parts_.options.op_timeout_ms) + " ms"});
}

void peer_link::port_lost(const device& d) {
  for (auto& r : rails_)
    if (&r->port() == &d && r->live())
      r->lose({errc::unavailable, "the port went down"});
}

// Faster rails may have more under way.
void peer_link::balance() {
  std::vector<std::uint64_t> rates;
  for (auto& r : rails_)
    rates.push_back(r->rate());
  auto most = depths(rates, parts_.options.queue_depth - 1);
  for (std::size_t i = 0; i < rails_.size(); ++i)
    rails_[i]->set_depth(most[i]);
}

void peer_link::rail_changed(rail&) {
  dirty_ = true;
  std::vector<live_pair> live;
  for (auto& r : rails_)
    if (r->live())
      live.push_back(
        {r->pair(), r->generation(), r->device_index(), parts_.sources.devices[r->device_index()]});
  {
    std::lock_guard guard{mutex_};
    live_ = std::move(live);
  }
  // What is known of regions misses the rail that came, or has keys for one that went.
  for (auto i = known_.begin(); i != known_.end();) {
    keys_went_ = true;
    i->second.keys = nullptr;
    i = i->second.asked == 0 ? known_.erase(i) : std::next(i);
  }
}

verbs_stats peer_link::stats() const {
  verbs_stats out;
  out.grants = book_->size();
  out.windows = book_->windows();
  std::lock_guard guard{mutex_};
  out.rails = rail_stats_;
  return out;
}

} // namespace millrace::transport::verbs
