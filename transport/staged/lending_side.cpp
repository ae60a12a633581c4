// Checks messages on the I/O loop; copies on the threads for devices.
#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/staged/lending_side.hpp>

#include <iterator>
#include <optional>

namespace millrace::transport::staged {

namespace {

status check_ranges(const stage& m, std::uint64_t region_bytes) {
  std::vector<copy_op> ops{{.remote_offset = m.region_end}};
  for (auto& r : m.ranges)
    ops.push_back({.remote_offset = r.offset, .length = r.length});
  return check_ops(ops, region_bytes);
}

} // namespace

status lending_side::on_stage(stage m) {
  if (auto bad = check(m, options_.chunk_bytes); !bad.ok())
    return bad;
  auto number = m.number;
  auto how = access_for(static_cast<direction>(m.dir));
  auto memory = find_region(m.region, m.key, how, memory_reach::any);
  if (!memory) {
    answer(number, fail(memory.error()));
    return {};
  }
  if (auto bad = check_ranges(m, memory->size_bytes()); !bad.ok()) {
    answer(number, fail(bad));
    return {};
  }
  if (memory->devices().empty()) {
    answer(number, fail(errc::unsupported, "memory of the host needs no staging"));
    return {};
  }
  std::uint64_t ticket = 0;
  {
    std::unique_lock lock{mutex_};
    if (loans_.contains(number))
      return {errc::protocol_error, "a number of staging that is in use"};
    if (loans_.size() >= options_.chunks_max) {
      lock.unlock();
      answer(number, fail(errc::busy, "the peer has as many chunks as staged.chunks_max allows"));
      return {};
    }
    ticket = ++tickets_;
    loans_.emplace(
      number,
      loan{
        std::make_shared<const stage>(std::move(m)), *memory, ticket, phase::waiting,
        steady_clock::now()});
  }
  pool_->acquire(
    who_, borrower_, ticket, [self = shared_from_this(), number, ticket](result<chunk*> given) {
      self->fill(number, ticket, std::move(given));
    });
  return {};
}

// The loan may have ended while it waited, and another loan may have its number now.
void lending_side::fill(std::uint64_t number, std::uint64_t ticket, result<chunk*> given) {
  std::optional<loan> l;
  {
    std::lock_guard guard{mutex_};
    auto found = loans_.find(number);
    if (found != loans_.end() && found->second.ticket != ticket)
      found = loans_.end();
    if (found != loans_.end() && given) {
      found->second.what = *given;
      found->second.now = phase::filling;
      l = found->second;
    } else if (found != loans_.end()) {
      loans_.erase(found);
    }
  }
  if (!given)
    return answer(number, fail(given.error()));
  if (!l)
    return pool_->give_back(*given, false);
  auto outcome = filled(*l);
  bool keeps = false, gone = false;
  {
    std::lock_guard guard{mutex_};
    auto& mine = loans_.at(number);
    gone = mine.given_up || closed_;
    keeps = !gone && outcome;
    mine.now = phase::lent;
    mine.since = steady_clock::now();
    if (!keeps)
      loans_.erase(number);
  }
  if (!keeps)
    pool_->give_back(*given, gone);
  if (!gone)
    answer(number, outcome);
}

result<bulk_handle> lending_side::filled(const loan& l) {
  auto dir = static_cast<direction>(l.asked->dir);
  auto handle = chunk_pool::lend(*l.what, borrower_, access_for(dir));
  auto copied = dir == direction::read ? copy(l, device_way::to_host) : status{};
  if (!copied.ok())
    return fail(copied);
  return handle;
}

status lending_side::copy(const loan& l, device_way way) {
  auto lease = l.memory.lease();
  if (!lease)
    return lease.error();
  for (auto& device : l.memory.devices())
    pool_->pin_for(*device);
  device_batch batch{way};
  auto* at = l.what->data;
  for (auto& r : l.asked->ranges) {
    lease->memory().copy_in_batch(batch, r.offset, at, r.length);
    at += r.length;
  }
  return batch.finish();
}

void lending_side::answer(std::uint64_t number, const result<bulk_handle>& outcome) {
  staged m;
  m.number = number;
  if (outcome) {
    m.region = outcome->region;
    m.key = outcome->key;
  } else {
    m.code = static_cast<std::uint8_t>(outcome.error().code());
    m.detail = outcome.error().detail();
  }
  send_or_close(*channel_, message_kind::staged, m);
}

status lending_side::on_commit(const commit& m) {
  {
    std::unique_lock lock{mutex_};
    auto found = loans_.find(m.number);
    if (found == loans_.end()) {
      lock.unlock();
      tell_committed(m.number, {errc::deadline_exceeded, "the chunk was kept for too long"});
      return {};
    }
    if (found->second.now != phase::lent || found->second.asked->dir != 2)
      return {errc::protocol_error, "a commit of what was not lent for writing"};
    found->second.now = phase::emptying;
  }
  pool_->movers()->devices().submit(
    1, [self = shared_from_this(), number = m.number](std::uint32_t) { self->empty(number); },
    [] {}, class_for(direction::write));
  return {};
}

void lending_side::empty(std::uint64_t number) {
  std::unique_lock lock{mutex_};
  auto l = loans_.at(number); // stays in the map while the chunk is emptied
  lock.unlock();
  auto outcome = copy(l, device_way::from_host);
  lock.lock();
  loans_.erase(number);
  lock.unlock();
  pool_->give_back(l.what, false);
  tell_committed(number, outcome);
}

void lending_side::tell_committed(std::uint64_t number, const status& outcome) {
  committed m{number, static_cast<std::uint8_t>(outcome.code()), outcome.detail()};
  send_or_close(*channel_, message_kind::committed, m);
}

void lending_side::on_release(const release& m) {
  std::unique_lock lock{mutex_};
  auto found = loans_.find(m.number);
  if (found == loans_.end())
    return;
  switch (found->second.now) {
  case phase::waiting: {
    auto ticket = found->second.ticket;
    loans_.erase(found);
    lock.unlock();
    pool_->cancel(borrower_, ticket);
    return;
  }
  case phase::filling:
    found->second.given_up = true;
    return;
  case phase::lent: {
    auto* c = found->second.what;
    loans_.erase(found);
    lock.unlock();
    pool_->give_back(c, m.broken);
    return;
  }
  case phase::emptying:
    return; // ends by itself
  }
}

void lending_side::expire(time_point now) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> unserved; // number, ticket
  std::vector<chunk*> kept;
  {
    std::lock_guard guard{mutex_};
    for (auto i = loans_.begin(); i != loans_.end();) {
      auto& l = i->second;
      auto late = l.since < now &&
        now - l.since > std::chrono::milliseconds{options_.hold_timeout_ms} &&
        (l.now == phase::waiting || l.now == phase::lent);
      if (!late) {
        ++i;
        continue;
      }
      if (l.now == phase::lent)
        kept.push_back(l.what);
      else
        unserved.emplace_back(i->first, l.ticket);
      i = loans_.erase(i);
    }
  }
  for (auto* c : kept)
    pool_->give_back(c, true);
  for (auto [number, ticket] : unserved) {
    pool_->cancel(borrower_, ticket);
    answer(
      number,
      fail(
        errc::busy,
        "no staging memory for devices in this process's share was free in time (staged.size)"));
  }
}

void lending_side::close() {
  std::vector<chunk*> kept;
  std::vector<std::uint64_t> waiting;
  {
    std::lock_guard guard{mutex_};
    closed_ = true;
    for (auto i = loans_.begin(); i != loans_.end();) {
      auto& l = i->second;
      if (l.now == phase::lent)
        kept.push_back(l.what);
      else if (l.now == phase::waiting)
        waiting.push_back(l.ticket);
      // A loan being copied ends when its copy ends.
      auto copying = l.now == phase::filling || l.now == phase::emptying;
      i = copying ? std::next(i) : loans_.erase(i);
    }
  }
  for (auto ticket : waiting)
    pool_->cancel(borrower_, ticket);
  for (auto* c : kept)
    pool_->give_back(c, true);
  pool_->forget(borrower_);
}

std::size_t lending_side::requests() const {
  std::lock_guard guard{mutex_};
  return loans_.size();
}

} // namespace millrace::transport::staged
