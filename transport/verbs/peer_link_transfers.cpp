// The submitter's side of a link: keys are asked for, requests cut, and rails filled in turn.
// Called on the completion thread.
#include <millrace/core/log.hpp>
#include <millrace/transport/verbs/memory_distance.hpp>
#include <millrace/transport/verbs/peer_link.hpp>

#include <algorithm>

namespace millrace::transport::verbs {

void peer_link::start(std::shared_ptr<running_transfer> t) {
  t->digesting = t->what.digests && t->what.dir == direction::write;
  if (t->digesting)
    settle(
      *parts_.movers, parts_.limits, t, false, [self = shared_from_this(), t](result<copied> made) {
        self->parts_.thread->post([self, t, made = std::move(made)] {
          t->settled = *made;
          t->digesting = false;
          self->note_end(t);
        });
      });
  parts_.thread->post([self = shared_from_this(), t] { self->begin(t); });
}

void peer_link::begin(const transfer_ptr& t) {
  if (closed_)
    return t->done(fail(errc::peer_lost, "the connection to " + peer().name + " is closed"));
  t->moved_at = steady_clock::now();
  t->place = transfers_.size();
  transfers_.push_back(t);
  obtain_keys(t);
  dirty_ = true;
}

// -- keys -----------------------------------------------------------------------------------------

peer_link::region_name peer_link::name_of(const running_transfer& t) {
  return {t.what.remote.region, t.what.remote.key, t.what.dir};
}

void peer_link::obtain_keys(const transfer_ptr& t) {
  auto name = name_of(*t);
  auto& known = known_[name];
  known.used_at = ++clock_;
  if (known.keys)
    return give_keys(name, known.keys);
  t->asking = true;
  if (known.asked != 0)
    return;
  known.asked = ++last_question_;
  questions_.emplace(known.asked, name);
  send(
    message_kind::ask,
    ask{known.asked, name.region, name.key, static_cast<std::uint8_t>(name.dir)});
}

// Nobody answers: whoever still wants to know asks anew.
void peer_link::give_up_question(const region_name& name) {
  auto found = known_.find(name);
  if (found == known_.end() || found->second.asked == 0)
    return;
  questions_.erase(found->second.asked);
  known_.erase(found);
  for (auto& t : transfers_)
    if (name_of(*t) == name)
      t->asking = false;
  keys_went_ = true;
}

void peer_link::on_granted(granted m) {
  auto question = questions_.find(m.number);
  if (question == questions_.end())
    return;
  auto name = question->second;
  questions_.erase(question);
  auto known = known_.find(name);
  if (known == known_.end() || known->second.asked != m.number)
    return; // withdrawn meanwhile
  if (m.code != 0) {
    known_.erase(known);
    return give_keys(name, fail(errc_from_wire(m.code), m.detail));
  }
  known->second.asked = 0;
  known->second.keys = std::make_shared<const key_set>(key_set::of(m));
  auto keys = known->second.keys;
  trim_known();
  give_keys(name, keys);
}

void peer_link::give_keys(
  const region_name& name, const result<std::shared_ptr<const key_set>>& keys) {
  dirty_ = true;
  for (auto& t : transfers_) {
    if (!t->failure.ok() || name_of(*t) != name)
      continue;
    t->asking = false;
    if (!keys) {
      fail_transfer(t, keys.error());
      continue;
    }
    // Requests were cut along the ranges of the first answer.
    auto other = t->keys && !t->keys->same_ranges(**keys);
    auto bad = other
      ? status{errc::protocol_error, peer().name + " says the region has other ranges than before"}
      : check_ops(t->what.ops, (*keys)->region_bytes);
    if (!bad.ok()) {
      fail_transfer(t, bad);
      continue;
    }
    t->keys = *keys;
    // Of what is there already, the owner's side is known only now.
    if (!std::exchange(t->checked, true))
      choose_home(*t);
    note_end(t); // if there is nothing to move
  }
}

// The least recently used go; who uses them now keeps them.
void peer_link::trim_known() {
  while (known_.size() > parts_.options.grants_max) {
    auto oldest = known_.end();
    for (auto i = known_.begin(); i != known_.end(); ++i)
      if (
        i->second.asked == 0 &&
        (oldest == known_.end() || i->second.used_at < oldest->second.used_at))
        oldest = i;
    if (oldest == known_.end())
      return;
    known_.erase(oldest);
    keys_went_ = true;
  }
}

void peer_link::forget_region(const region_name& name) {
  if (auto found = known_.find(name); found != known_.end() && found->second.asked == 0)
    known_.erase(found);
  keys_went_ = true;
}

void peer_link::on_withdrawn(withdrawn m) {
  for (auto i = known_.begin(); i != known_.end();)
    i = i->first.region == m.region ? known_.erase(i) : std::next(i);
  for (auto& t : transfers_)
    if (t->what.remote.region == m.region)
      fail_transfer(t, {errc::permission_denied, "the memory behind the handle was withdrawn"});
}

// -- filling the rails ----------------------------------------------------------------------------

bool peer_link::serve() {
  bool happened = false;
  for (auto& r : rails_)
    happened |= r->serve();
  if (happened || std::exchange(dirty_, false))
    happened |= pump();
  return happened;
}

bool peer_link::pump() {
  auto some_up = std::any_of(rails_.begin(), rails_.end(), [](auto& r) { return r->up(); });
  if (some_up && std::exchange(keys_went_, false))
    for (auto& t : transfers_)
      if (t->has_work() && !t->asking && !known_.contains(name_of(*t)))
        obtain_keys(t);
  auto posted = fill_rails();
  reap();
  note_reachable();
  return posted;
}

// One request a rail and round, so that a transfer spreads over all of them from its beginning.
bool peer_link::fill_rails() {
  bool some = false;
  for (bool posted = true; posted; some |= posted) {
    posted = false;
    for (auto& r : rails_) {
      auto t = r->has_room() ? next_for(*r) : nullptr;
      if (t)
        posted |= post_next(*r, t, *t->keys->over(r->pair(), r->generation()));
    }
  }
  for (auto& r : rails_)
    r->flush();
  return some;
}

// Transfers take turns, request by request.
peer_link::transfer_ptr peer_link::next_for(const rail& r) {
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    auto at = (turn_ + i) % transfers_.size();
    auto& t = transfers_[at];
    auto ready = t->has_work() && t->checked && t->keys && may_use(r, *t) &&
      t->keys->over(r.pair(), r.generation());
    if (!ready)
      continue;
    turn_ = at + 1;
    return t;
  }
  return nullptr;
}

bool peer_link::may_use(const rail& r, const running_transfer& t) const {
  if (t.total_bytes >= parts_.options.stripe_bytes_min)
    return true;
  auto* home = home_of(t);
  return !home || home == &r;
}

// Null when it is down: any other will do.
const rail* peer_link::home_of(const running_transfer& t) const {
  auto* home = t.home < rails_.size() ? rails_[t.home].get() : nullptr;
  auto usable = home && home->up() && (!t.keys || t.keys->over(home->pair(), home->generation()));
  return usable ? home : nullptr;
}

void peer_link::choose_home(running_transfer& t) {
  std::vector<rail_distance> able;
  for (auto& r : rails_)
    if (auto* keys = r->up() ? t.keys->over(r->pair(), r->generation()) : nullptr)
      able.push_back({r->pair(), distance_between(t.node_mask, r->node_mask()), keys->way});
  if (auto home = choose_rail(able, homes_))
    t.home = *home;
  ++homes_;
}

bool peer_link::post_next(rail& r, const transfer_ptr& t, const key_set::pair_keys& keys) {
  request next;
  if (!t->again.empty()) {
    next = std::move(t->again.front());
    t->again.pop_front();
  } else {
    request_limits limits{pieces_max_, r.message_bytes_max()};
    next = t->cutter.cut(limits, t->keys->range_ends);
  }
  auto& ends = t->keys->range_ends;
  auto range = static_cast<std::size_t>(
    std::upper_bound(ends.begin(), ends.end(), next.remote_offset) - ends.begin());
  auto first = range == 0 ? 0 : ends[range - 1];
  auto address = t->keys->addresses[range] + (next.remote_offset - first);
  auto key = keys.keys[range];
  ++t->in_flight;
  auto last = t->again.empty() && t->cutter.at_end();
  return r.post(
    t, t->what.dir, std::move(next), address, key, t->keys_of_device[r.device_index()], last);
}

// -- what becomes of requests ---------------------------------------------------------------------

void peer_link::request_done(const std::shared_ptr<running_transfer>& t, const request&) {
  --t->in_flight;
  t->moved_at = steady_clock::now();
  note_end(t);
}

void peer_link::request_undone(
  const std::shared_ptr<running_transfer>& t, request r, undone how, const status& why) {
  --t->in_flight;
  dirty_ = keys_went_ = true;
  if (!t->failure.ok())
    return note_end(t);
  if (how == undone::local_error)
    return fail_transfer(t, {errc::io_error, why.within("moving with " + peer().name).detail()});
  if (how == undone::refused) {
    // Keys that do not work any more: the owner knows whether there are others.
    forget_region(name_of(*t));
    if (++t->refused > parts_.options.op_retries)
      return fail_transfer(t, why.within("moving with " + peer().name));
  }
  if (how == undone::blamed && ++r.attempts > parts_.options.op_retries)
    return fail_transfer(t, why.within("moving with " + peer().name));
  t->again.push_back(std::move(r));
}

void peer_link::fail_transfer(const transfer_ptr& t, const status& why) {
  if (t->failure.ok())
    t->failure = why;
  note_end(t);
}

void peer_link::note_end(const transfer_ptr& t) {
  dirty_ = true;
  if (t->at_end() && !std::exchange(t->ended, true))
    ended_.push_back(t);
}

// Whatever ended the rails says nothing of these transfers: another driver may move them.
status peer_link::why_no_rail() const {
  for (auto& r : rails_)
    if (!r->last_error().ok())
      return {errc::unavailable, r->last_error().detail()};
  return {errc::unavailable, "no RDMA device reaches " + peer().name};
}

void peer_link::reap() {
  auto hope = std::any_of(rails_.begin(), rails_.end(), [](auto& r) { return r->hopeful(); });
  if (!hope && !transfers_.empty()) {
    auto why = why_no_rail();
    for (auto& t : transfers_)
      fail_transfer(t, why);
  }
  for (auto& t : std::exchange(ended_, {})) {
    transfers_.back()->place = t->place;
    std::swap(transfers_[t->place], transfers_.back());
    transfers_.pop_back();
    finish(t);
  }
}

void peer_link::finish(const transfer_ptr& t) {
  auto tell = [t](result<copied> outcome) {
    t->what.hold.reset();
    if (!outcome)
      return t->done(fail(outcome.error()));
    t->done(transfer_report{std::move(outcome->digests), "verbs", outcome->written_back});
  };
  if (!t->failure.ok())
    return tell(fail(t->failure));
  auto reads = t->what.dir == direction::read;
  auto write_back = reads && t->what.write_back && can_write_back();
  if (reads && (t->what.digests || write_back))
    return settle(*parts_.movers, parts_.limits, t, write_back, std::move(tell));
  tell(std::move(t->settled));
}

void peer_link::note_reachable() {
  reachable_ = std::any_of(rails_.begin(), rails_.end(), [](auto& r) { return r->hopeful(); });
}

} // namespace millrace::transport::verbs
