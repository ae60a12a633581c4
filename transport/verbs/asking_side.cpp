// The life of a transfer: it gets keys, its requests are done or come back, and it ends.
#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/verbs/asking_side.hpp>

#include <algorithm>

namespace millrace::transport::verbs {

asking_side::asking_side(
  std::shared_ptr<net::channel> c, const link_parts& parts, const rail_set& rails)
  : channel_(std::move(c)), parts_(parts), rails_(rails), runs_max_(parts.options.sge_max) {
  for (auto& d : parts_.sources.devices)
    runs_max_ = std::min<std::size_t>(runs_max_, d->sge_max());
}

void asking_side::start(std::shared_ptr<running_transfer> t) {
  t->digesting = t->what.digests && t->what.dir == direction::write;
  if (t->digesting)
    settle(*parts_.movers, parts_.limits, t, false, [self = self(), t](result<copied> made) {
      self->parts_.thread->post([self, t, made = std::move(made)] {
        t->settled = *made;
        t->digesting = false;
        self->note_end(t);
      });
    });
  parts_.thread->post([self = self(), t] { self->begin(t); });
}

void asking_side::begin(const transfer_ptr& t) {
  if (closed_)
    return t->done(fail(errc::peer_lost, "the connection to {} is closed", peer()));
  t->moved_at = steady_clock::now();
  t->place = transfers_.size();
  transfers_.push_back(t);
  obtain_keys(t);
  dirty_ = true;
}

void asking_side::obtain_keys(const transfer_ptr& t) {
  auto name = region_name::of(*t);
  if (auto keys = keys_.find(name))
    return give_keys(name, keys);
  t->asking = true;
  if (auto number = keys_.ask(name))
    send_or_close(
      *channel_, message_kind::ask,
      ask{*number, name.region, name.key, static_cast<std::uint8_t>(name.dir)});
}

// The peer has not answered. Transfers that still need the keys ask again.
void asking_side::give_up_question(const region_name& name) {
  if (!keys_.give_up(name))
    return;
  for (auto& t : transfers_)
    if (region_name::of(*t) == name)
      t->asking = false;
  keys_went_ = true;
}

void asking_side::on_granted(const granted& m) {
  auto name = keys_.answered(m.number);
  if (!name)
    return;
  if (m.code != 0) {
    keys_.forget(*name);
    return give_keys(*name, fail(errc_from_wire(m.code), m.detail));
  }
  auto keys = std::make_shared<const key_set>(key_set::of(m));
  keys_.add(*name, keys);
  keys_went_ |= keys_.trim(parts_.options.grants_max);
  give_keys(*name, keys);
}

void asking_side::give_keys(const region_name& name, const result<region_keys::keys_ptr>& keys) {
  dirty_ = true;
  for (auto& t : transfers_) {
    if (!t->failure.ok() || region_name::of(*t) != name)
      continue;
    t->asking = false;
    if (!keys) {
      fail_transfer(t, keys.error());
      continue;
    }
    // The requests were cut along the ranges of the first answer.
    auto other = t->keys && !t->keys->same_ranges(**keys);
    auto bad = other
      ? status{errc::protocol_error, peer() + " says the region has other ranges than before"}
      : check_ops(t->what.ops, (*keys)->region_bytes);
    if (!bad.ok()) {
      fail_transfer(t, bad);
      continue;
    }
    t->keys = *keys;
    // Only now does this side know where the memory lies at the owner.
    if (!std::exchange(t->checked, true))
      choose_home(*t);
    note_end(t); // if there is nothing to move
  }
}

void asking_side::on_withdrawn(const withdrawn& m) {
  keys_.withdrawn(m.region);
  for (auto& t : transfers_)
    if (t->what.remote.region == m.region)
      fail_transfer(t, {errc::permission_denied, "the memory behind the handle was withdrawn"});
}

void asking_side::rails_changed() {
  dirty_ = true;
  keys_went_ |= keys_.forget_all();
}

void asking_side::request_done(const transfer_ptr& t) {
  --t->in_flight;
  t->moved_at = steady_clock::now();
  note_end(t);
}

void asking_side::request_undone(
  const transfer_ptr& t, request r, rail_owner::undone how, const status& why) {
  using undone = rail_owner::undone;
  --t->in_flight;
  dirty_ = keys_went_ = true;
  if (!t->failure.ok())
    return note_end(t);
  if (how == undone::local_error)
    return fail_transfer(t, {errc::io_error, why.within("moving with " + peer()).detail()});
  if (how == undone::refused) {
    // The keys do not work any more. The owner knows whether there are new ones.
    keys_.forget(region_name::of(*t));
    if (++t->refused > parts_.options.op_retries)
      return fail_transfer(t, why.within("moving with " + peer()));
  }
  if (how == undone::blamed && ++r.attempts > parts_.options.op_retries)
    return fail_transfer(t, why.within("moving with " + peer()));
  t->again.push_back(std::move(r));
}

void asking_side::tick(time_point now) {
  for (auto& t : transfers_)
    if (now - t->moved_at > std::chrono::milliseconds{parts_.options.op_timeout_ms})
      end_if_stuck(t);
  reap();
}

// A transfer whose bytes have all arrived waits only for this side's movers, so it is left alone.
// The caller's own deadline may be later, which may leave time for another driver.
void asking_side::end_if_stuck(const transfer_ptr& t) {
  if (t->in_flight > 0 || t->digesting)
    return;
  if (t->asking)
    give_up_question(region_name::of(*t));
  fail_transfer(
    t,
    {errc::unavailable, "nothing moved with {} within {} ms", peer(),
     parts_.options.op_timeout_ms});
}

void asking_side::fail_transfer(const transfer_ptr& t, const status& why) {
  if (t->failure.ok())
    t->failure = why;
  note_end(t);
}

void asking_side::note_end(const transfer_ptr& t) {
  dirty_ = true;
  if (t->at_end() && !std::exchange(t->ended, true))
    ended_.push_back(t);
}

void asking_side::reap() {
  if (!transfers_.empty() && !rails_.some_hopeful()) {
    auto why = rails_.last_error(peer());
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

void asking_side::finish(const transfer_ptr& t) {
  auto tell = [t](result<copied> outcome) {
    t->what.hold.reset();
    if (!outcome)
      return t->done(fail(outcome.error()));
    t->done(transfer_report{
      .digests = std::move(outcome->digests),
      .driver = "verbs",
      .written_back = outcome->written_back});
  };
  if (!t->failure.ok())
    return tell(fail(t->failure));
  auto reads = t->what.dir == direction::read;
  auto write_back = reads && t->what.write_back && can_write_back();
  if (reads && (t->what.digests || write_back))
    return settle(*parts_.movers, parts_.limits, t, write_back, std::move(tell));
  tell(std::move(t->settled));
}

void asking_side::close(const status& why) {
  closed_ = true;
  // A mover may still be reading for digests. It shares the transfer, which keeps the memory.
  ended_.clear();
  for (auto& t : std::exchange(transfers_, {}))
    t->done(fail(why));
  keys_.clear();
}

} // namespace millrace::transport::verbs
