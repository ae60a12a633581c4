// Decides which request goes over which rail. Called on the completion thread.
#include <millrace/transport/memory/memory_distance.hpp>
#include <millrace/transport/verbs/asking_side.hpp>

#include <algorithm>

namespace millrace::transport::verbs {

bool asking_side::pump() {
  if (rails_.some_up() && std::exchange(keys_went_, false))
    for (auto& t : transfers_)
      if (t->has_work() && !t->asking && !keys_.contains(region_name::of(*t)))
        obtain_keys(t);
  auto posted = fill_rails();
  reap();
  return posted;
}

// Posts one request per rail and round, so that a transfer is spread over all rails from its
// beginning.
bool asking_side::fill_rails() {
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

// Returns the transfer whose turn it is. Transfers take turns, request by request.
asking_side::transfer_ptr asking_side::next_for(const rail& r) {
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

bool asking_side::may_use(const rail& r, const running_transfer& t) const {
  if (t.total_bytes >= parts_.options.stripe_bytes_min)
    return true;
  auto* home = home_of(t);
  return !home || home == &r;
}

// Returns null if the home rail is down. Then any other rail may be used.
const rail* asking_side::home_of(const running_transfer& t) const {
  auto* home = rails_.find(t.home);
  auto usable = home && home->up() && (!t.keys || t.keys->over(home->pair(), home->generation()));
  return usable ? home : nullptr;
}

void asking_side::choose_home(running_transfer& t) {
  std::vector<rail_distance> able;
  for (auto& r : rails_)
    if (auto* keys = r->up() ? t.keys->over(r->pair(), r->generation()) : nullptr)
      able.push_back({r->pair(), distance_between(t.node_mask, r->node_mask()), keys->way});
  if (auto home = choose_rail(able, homes_))
    t.home = *home;
  ++homes_;
}

bool asking_side::post_next(rail& r, const transfer_ptr& t, const key_set::pair_keys& keys) {
  request next;
  if (!t->again.empty()) {
    next = std::move(t->again.front());
    t->again.pop_front();
  } else {
    request_limits limits{runs_max_, r.message_bytes_max()};
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

} // namespace millrace::transport::verbs
