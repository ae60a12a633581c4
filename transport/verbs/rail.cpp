// The states of a connection, and the requests in flight over it.
// Driven by `peer_link` on the completion thread.
#include <millrace/core/log.hpp>
#include <millrace/transport/verbs/rail.hpp>

#include <algorithm>

namespace millrace::transport::verbs {

namespace {

std::chrono::milliseconds ms(std::uint32_t n) { return std::chrono::milliseconds{n}; }

rail_owner::undone kind_of(ibv_wc_status s) {
  using undone = rail_owner::undone;
  switch (s) {
  case IBV_WC_REM_ACCESS_ERR:
  case IBV_WC_REM_INV_REQ_ERR:
  case IBV_WC_REM_OP_ERR:
    return undone::refused;
  case IBV_WC_LOC_LEN_ERR:
  case IBV_WC_LOC_PROT_ERR:
    return undone::local_error;
  default:
    return undone::blamed;
  }
}

} // namespace

// Runs `f` in the lane of the peer. The function that `f` returns then runs on the completion
// thread, if the owner still lives.
template <class F>
void rail::set_up(F f) {
  p_.setup->post(&owner_, turn(), [f = std::move(f), alive = p_.alive, thread = p_.thread] {
    auto then = f();
    thread->post([then = std::move(then), alive]() mutable {
      if (auto owner = alive.lock())
        then();
    });
  });
}

void rail::start_deadline() { deadline_ = steady_clock::now() + ms(p_.options.connect_timeout_ms); }

void rail::attempt(std::uint32_t generation) {
  begun_ = true;
  generation_ = generation;
  state_ = state::opening;
  peer_ready_ = false;
  start_deadline();
  // A queue pair that is being made serves any generation.
  if (std::exchange(open_pending_, true))
    return;
  set_up([this, p = p_, lane = &owner_, when = turn()] {
    return [this, made = make(p, lane, when)]() mutable { opened(std::move(made)); };
  });
}

result<rail::unjoined> rail::make(const parts& p, const void* lane, setup_pool::turn when) {
  auto q = queue_pair::open(p.port, p.options);
  if (!q)
    return fail(q.error());
  unjoined out{std::move(*q), nullptr};
  if (!p.cm)
    return out;
  auto cm = cm_connection::open({p.cm, p.port, p.peer, p.options, p.setup, lane, when}, p.passive);
  if (!cm)
    return fail(cm.error());
  out.cm = std::move(*cm);
  return out;
}

// A queue pair without a partner can serve a later generation, too.
void rail::opened(result<unjoined> made) {
  open_pending_ = false;
  if (made)
    cm_ = std::move(made->cm);
  if (closed_ || state_ != state::opening)
    return drop_connection();
  if (!made)
    return lose(made.error());
  making_ = std::move(made->q);
  state_ = state::offered;
  auto offer = making_->offer();
  if (cm_)
    cm_->announce(offer);
  offer.pair = p_.pair;
  offer.generation = generation_;
  owner_.send_connect(offer);
  if (theirs_ && theirs_->generation == generation_)
    join();
}

void rail::on_connect(const connect& m) {
  if (closed_)
    return;
  if (m.generation < generation_ && state_ != state::down)
    return; // our newer queue pair is on its way
  if (m.generation <= generation_ && state_ == state::down) {
    // The peer does not know yet that this side has given up.
    theirs_.reset();
    if (begun_)
      attempt(generation_ + 1);
    return;
  }
  if (m.generation == generation_) {
    if (state_ == state::opening || state_ == state::offered)
      theirs_ = m;
    if (state_ == state::offered)
      join();
    return;
  }
  auto was_hopeful = hopeful();
  take_down(
    {errc::unavailable, p_.peer + " connects anew"}, rail_owner::undone::untouched, ending::anew);
  grace_ = was_hopeful;
  theirs_ = m;
  if (begun_)
    attempt(m.generation);
}

void rail::join() {
  state_ = state::joining;
  if (cm_)
    return join_by_cm();
  set_up([this, q = std::exchange(making_, nullptr), m = *theirs_, options = p_.options] {
    auto outcome = q->join(m, options);
    return [this, q, outcome, generation = m.generation] { joined(generation, q, outcome); };
  });
}

// Used with rdma_cm, where `join` returns before it is done.
void rail::join_by_cm() {
  // The kernel repeats a lost request after 4.3 s, so the deadline starts anew here.
  start_deadline();
  auto q = std::exchange(making_, nullptr);
  auto tell = [this, q, generation = generation_, alive = p_.alive,
               thread = p_.thread](const status& outcome) {
    thread->post([this, q, generation, outcome, alive] {
      if (auto owner = alive.lock())
        joined(generation, q, outcome);
    });
  };
  p_.setup->post(
    &owner_, turn(), [cm = cm_, q, m = *theirs_, tell = std::move(tell)] { cm->join(q, m, tell); });
}

// Runs in the lane, since releasing an identifier may wait for its events.
void rail::drop_connection() {
  if (!cm_)
    return;
  p_.setup->post(
    &owner_, turn(), [cm = std::exchange(cm_, nullptr), hub = p_.cm, port = p_.port]() mutable {
      hub->let_go(std::move(cm), port);
    });
}

void rail::joined(std::uint32_t generation, std::shared_ptr<queue_pair> q, const status& outcome) {
  if (closed_ || state_ != state::joining || generation != generation_)
    return;
  if (!outcome.ok())
    return lose(outcome);
  q_ = std::move(q);
  state_ = state::joined;
  owner_.send_ready({p_.pair, generation_});
  owner_.rail_changed(*this);
  if (peer_ready_)
    probe();
}

void rail::on_ready(const ready& m) {
  if (m.generation != generation_ || closed_)
    return;
  peer_ready_ = true;
  if (state_ == state::joined)
    probe();
}

void rail::on_lost(const lost& m) {
  if (m.generation == generation_ && live())
    take_down(
      {errc::unavailable, p_.peer + " lost its end"}, rail_owner::undone::untouched, ending::there);
}

void rail::probe() {
  state_ = state::probing;
  auto id = next_id_++;
  if (auto bad = q_->post_probe(id); !bad.ok())
    return lose(bad);
  note_posted(
    {id,
     nullptr,
     [this](const status& outcome) {
       if (!outcome.ok() || state_ != state::probing)
         return;
       state_ = state::up;
       grace_ = true;
       failed_ = false;
       log().debug("rail up device={} peer={}", p_.port->name(), p_.peer);
       owner_.rail_changed(*this);
     },
     {}},
    true);
}

void rail::lose(const status& why) { take_down(why, rail_owner::undone::blamed, ending::here); }

void rail::take_down(const status& why, rail_owner::undone first, ending how) {
  auto was_up = up();
  auto counts = how != ending::anew;
  if (how == ending::here && live())
    owner_.send_lost({p_.pair, generation_});
  auto generation = generation_;
  making_.reset();
  if (auto q = std::exchange(q_, nullptr))
    q->close(); // the object that connected it may still hold it
  drop_connection();
  state_ = state::down;
  retry_at_ = steady_clock::now() + ms(p_.options.probe_interval_ms);
  if (counts) {
    ++failures_;
    failed_ |= !was_up;
    last_error_ = why.within("rail " + p_.port->name() + " to " + p_.peer);
    log().at(
      was_up ? log_level::info : log_level::debug, "{}: {}",
      was_up ? "rail lost" : "rail not connected", last_error_.to_string());
  }
  auto undone = std::exchange(posted_, {});
  auto binds = std::exchange(binds_, {});
  unsignalled_ = 0;
  unsignalled_bytes_ = 0;
  port_bytes() -= std::exchange(inflight_bytes_, 0);
  if (counts && was_up && !closed_)
    attempt(generation + 1);
  else
    grace_ = false;
  for (auto& p : undone) {
    if (p.work) {
      ++retried_;
      owner_.request_undone(p.work, std::move(p.what), first, why);
      first = rail_owner::undone::untouched;
    } else if (p.then) {
      p.then(why);
    }
  }
  for (auto& b : binds)
    b.then(why);
  owner_.rail_changed(*this);
}

void rail::close() {
  closed_ = true;
  take_down({errc::peer_lost, "closed"}, rail_owner::undone::untouched, ending::anew);
}

bool rail::has_room() const noexcept {
  auto depth = std::min(depth_, p_.options.queue_depth - 1);
  return up() && posted_.size() < depth && inflight_bytes_ < p_.options.inflight_bytes_max &&
    (posted_.empty() || port_bytes() < p_.options.port_inflight_bytes_max);
}

// Returns true often enough that a quarter of the requests and bytes that may be in flight never
// waits for a completion.
bool rail::wants_signal(bool last, std::uint64_t bytes) const noexcept {
  auto depth = std::min(depth_, p_.options.queue_depth - 1);
  return last ||
    unsignalled_ + 1 >= std::min(p_.options.signal_interval, std::max(depth / 4, 1u)) ||
    unsignalled_bytes_ + bytes >= p_.options.inflight_bytes_max / 4;
}

bool rail::post(
  std::shared_ptr<running_transfer> t, direction dir, request r, std::uint64_t address,
  std::uint32_t key, const local_keys& keys, bool last) {
  auto id = next_id_++;
  auto signal = wants_signal(last, r.length);
  auto bad = q_->post(id, signal, dir, r, address, key, keys);
  if (!bad.ok()) {
    owner_.request_undone(t, std::move(r), rail_owner::undone::blamed, bad);
    lose(bad);
    return false;
  }
  note_posted({id, std::move(t), nullptr, std::move(r)}, signal);
  return true;
}

void rail::note_posted(posted p, bool signalled) {
  if (posted_.empty()) {
    moved_at_ = rate_since_ = steady_clock::now();
    rate_bytes_ = 0;
  }
  inflight_bytes_ += p.what.length;
  port_bytes() += p.what.length;
  unsignalled_ = signalled ? 0 : unsignalled_ + 1;
  unsignalled_bytes_ = signalled ? 0 : unsignalled_bytes_ + p.what.length;
  posted_.push_back(std::move(p));
}

void rail::flush() {
  if (!q_ || unsignalled_ == 0)
    return;
  auto id = next_id_++;
  if (auto bad = q_->post_probe(id); !bad.ok())
    return lose(bad);
  note_posted({id, nullptr, nullptr, {}}, true);
}

void rail::bind(std::shared_ptr<remote_key> key, std::function<void(const status&)> then) {
  if (!q_)
    return then({errc::unavailable, "the rail is down"});
  binds_.push_back({std::move(key), std::move(then)});
}

bool rail::post_binds() {
  bool some = false;
  while (q_ && !binds_.empty() && has_bind_room()) {
    some = true;
    auto b = std::move(binds_.front());
    binds_.pop_front();
    auto id = next_id_++;
    auto signal = binds_.empty() || wants_signal(false, 0);
    if (auto bad = q_->post_bind(id, signal, *b.key); !bad.ok()) {
      b.then(bad);
      if (bad.code() != errc::permission_denied)
        lose(bad);
      continue;
    }
    note_posted({id, nullptr, std::move(b.then), {}}, signal);
  }
  return some;
}

bool rail::serve() {
  if (!q_)
    return false;
  auto happened = post_binds();
  // A completion may end this queue pair.
  for (auto q = q_; q_ == q && q;) {
    auto done = q->poll();
    happened |= !done.empty();
    for (auto& wc : done)
      if (q_ == q)
        complete(wc);
    if (done.empty())
      break;
  }
  return happened;
}

// Requests complete in order, so every request posted before this one is done, too.
void rail::complete(const ibv_wc& wc) {
  moved_at_ = steady_clock::now();
  ++completions_;
  std::uint64_t bytes = 0;
  while (!posted_.empty() && posted_.front().id <= wc.wr_id) {
    auto p = std::move(posted_.front());
    if (p.id == wc.wr_id && wc.status != IBV_WC_SUCCESS) {
      posted_.front() = std::move(p);
      return take_down(error_of(wc), kind_of(wc.status), ending::here);
    }
    posted_.pop_front();
    inflight_bytes_ -= p.what.length;
    port_bytes() -= p.what.length;
    bytes += p.what.length;
    if (p.work) {
      ++requests_;
      bytes_ += p.what.length;
      owner_.request_done(p.work, p.what);
    } else if (p.then) {
      p.then({});
    }
  }
  note_rate(bytes);
}

status rail::error_of(const ibv_wc& wc) const {
  auto refused = kind_of(wc.status) == rail_owner::undone::refused;
  return {
    refused ? errc::permission_denied : errc::unavailable, "{} (status {}, vendor {})",
    ibv_wc_status_str(wc.status), static_cast<int>(wc.status), wc.vendor_err};
}

void rail::note_rate(std::uint64_t bytes) {
  rate_bytes_ += bytes;
  auto spent = moved_at_ - rate_since_;
  if (spent < std::chrono::milliseconds{5} || rate_bytes_ == 0)
    return;
  auto seconds = std::chrono::duration<double>(spent).count();
  auto sample = static_cast<std::uint64_t>(static_cast<double>(rate_bytes_) / seconds);
  rate_ = rate_ == 0 ? sample : (3 * rate_ + sample) / 4;
  rate_bytes_ = 0;
  rate_since_ = moved_at_;
}

bool rail::tick(time_point now) {
  if (closed_ || !begun_)
    return false;
  if (state_ == state::down) {
    if (now >= retry_at_)
      attempt(generation_ + 1);
    return true;
  }
  if (state_ != state::up) {
    if (now >= deadline_)
      lose({errc::unavailable, "no connection within {} ms", p_.options.connect_timeout_ms});
    return true;
  }
  if (posted_.empty())
    return false;
  // Devices may fail to report a completion. The waiting transfers must have time left to use
  // another rail or driver.
  auto patience_ms = std::max(1u, p_.options.op_timeout_ms / 2);
  if (now - moved_at_ > ms(patience_ms))
    lose({errc::unavailable, "nothing completed within {} ms", patience_ms});
  return true;
}

verbs_rail_stats rail::stats() const {
  verbs_rail_stats out;
  out.peer = p_.peer;
  out.device = p_.port->name();
  out.connected_by = p_.cm ? "rdma_cm" : "channel";
  out.state = up() ? "up" : state_ == state::down ? "down" : "connecting";
  out.bytes = bytes_;
  out.requests = requests_;
  out.completions = completions_;
  out.retried = retried_;
  out.failures = failures_;
  out.rate_bytes_per_s = rate_;
  out.depth = std::min(depth_, p_.options.queue_depth - 1);
  out.last_error = last_error_.ok() ? "" : last_error_.to_string();
  return out;
}

} // namespace millrace::transport::verbs
