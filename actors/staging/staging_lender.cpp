// Lends staging memory within the budgets of lenders, and when it comes back.
#include <millrace/actors/staging/staging_lender.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/planted_defect.hpp>

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <utility>

namespace millrace::actors {

namespace {

constexpr std::uint64_t border_bytes = 4096;
constexpr std::uint64_t turns_of_all = 8; // one of them belongs to a use that comes later

// Returns the uses in the order of this turn.
std::array<staging_use, staging_uses> order_of(std::uint64_t turn) {
  using enum staging_use;
  if (turn % turns_of_all < turns_of_all - 1)
    return {restore, save, load_ahead};
  if (turn / turns_of_all % 2 == 0)
    return {save, restore, load_ahead};
  return {load_ahead, restore, save};
}

constinit std::atomic<std::size_t> memories = 0;

} // namespace

std::size_t staging_memories() noexcept { return memories.load(std::memory_order_relaxed); }

staging_memory::staging_memory(std::shared_ptr<memory_source> memory)
  : memory_(std::move(memory)), shares_(memory_->capacity_bytes()) {
  memories.fetch_add(1, std::memory_order_relaxed);
}

staging_memory::~staging_memory() { memories.fetch_sub(1, std::memory_order_relaxed); }

void staging_memory::managed_by(std::function<void()> call, const staging_rules& rules) {
  auto made = call ? std::make_shared<const std::function<void()>>(std::move(call)) : nullptr;
  std::lock_guard guard{mutex_};
  call_.swap(made);
  rules_ = rules;
  if (call_)
    refused_ = {};
}

std::chrono::milliseconds staging_memory::share_out(time_point now) {
  std::unique_lock lock{mutex_};
  requests late;
  refuse(
    late, [now](const request& one) { return one.deadline < now; },
    [](const staging_lender& l) {
      return status{
        errc::deadline_exceeded, "provider {} had no staging memory free within the request's time",
        l.account_.name};
    });
  // They are answered whatever happens below.
  if (!late.empty()) {
    serve(std::move(lock), std::move(late));
    lock = std::unique_lock{mutex_};
  }
  std::vector<staging_account*> accounts;
  for (auto* l : lenders_)
    accounts.push_back(&l->account_);
  std::ranges::stable_sort(accounts, {}, &staging_account::name);
  auto next = actors::share_out(memory_->capacity_bytes(), accounts, now, rules_);
  serve(std::move(lock));
  return next;
}

void staging_memory::refuse_all(const status& why) {
  std::unique_lock lock{mutex_};
  refused_ = why;
  serve(std::move(lock));
}

template <class Is, class Why>
void staging_memory::refuse(requests& served, Is is, Why why) {
  for (auto* l : lenders_) {
    auto removed = l->remove(is);
    for (auto& r : removed)
      try {
        r.outcome = fail(why(*l));
      } catch (const std::bad_alloc&) { // it keeps the outcome that it has
      }
    served.splice(served.end(), removed);
  }
}

std::vector<staging_status> staging_memory::report() const {
  std::lock_guard guard{mutex_};
  std::vector<staging_status> out;
  for (auto* l : lenders_) {
    auto& a = l->account_;
    out.push_back(
      {a.name, a.quota_bytes, a.budget_bytes, a.used_bytes, l->waiting(), l->waits_, l->waited_us_,
       a.lent_bytes, a.lent_count, l->calls_});
  }
  std::ranges::sort(out, {}, &staging_status::name);
  return out;
}

void staging_memory::serve(std::unique_lock<std::mutex> lock, requests served) {
  for (auto* l : lenders_)
    l->account_.short_bytes = 0;
  auto in_pieces = false;
  while (serve_next(served, in_pieces)) {
  }
  if (!refused_.ok()) {
    refuse(
      served, [](auto&) { return true; }, [this](auto&) { return refused_; });
    for (auto* l : lenders_)
      l->account_.short_bytes = 0;
  }
  ++round_;
  auto any = false;
  for (auto* l : lenders_)
    any |= must_call(*l);
  unlock(lock, any);
  for (auto& r : served)
    answer(r);
}

void staging_memory::unlock(std::unique_lock<std::mutex>& lock, bool calls) const {
  auto call = calls ? call_ : nullptr;
  lock.unlock();
  if (!call)
    return;
  try {
    (*call)();
  } catch (const std::exception& e) {
    log().error("the staging manager could not be called: {}", e.what());
  }
}

// An operation that does not take its answer ends at its deadline, and the others get theirs.
void staging_memory::answer(request& r) {
  try {
    r.granted(std::move(r.outcome));
  } catch (const std::exception& e) {
    log().error("a request for staging memory could not be answered: {}", e.what());
  }
}

bool staging_memory::serve_next(requests& served, bool& in_pieces) {
  for (auto use : order_of(turn_))
    for (auto* to : lenders_) {
      auto may = [&](auto&, requests& r) { return lend(*to, use, r.front(), in_pieces); };
      if (auto one = to->waiting_[static_cast<std::size_t>(use)].next(may)) {
        served.splice(served.end(), *one);
        --waiting_;
        end_turn(*to);
        return true;
      }
    }
  return false;
}

void staging_memory::end_turn(staging_lender& of) {
  ++turn_;
  lenders_.splice(lenders_.end(), lenders_, of.at_);
}

bool staging_memory::lend(staging_lender& to, staging_use use, request& r, bool& in_pieces) try {
  auto& a = to.account_;
  auto& who = r.owner->who;
  auto size_bytes = r.owner->size_bytes;
  auto fits = shares_.fits(who, size_bytes) && to.shares_.fits(who, size_bytes);
  auto has_its_share = !fits && !who.process.is_nil() && shares_.taken_by(who) > 0;
  // The first request of a process that has less than its share waits for budget before all others
  // of its lender, and for memory before all others, also when what is free lies in pieces.
  if (in_pieces || a.short_bytes > 0 || has_its_share)
    return false;
  if (a.used_bytes + size_bytes + a.called_back_bytes > a.budget_bytes) {
    a.short_bytes = size_bytes;
    a.short_use = use;
    return false;
  }
  if (!fits)
    return false;
  auto block = memory_->allocate(size_bytes, border_bytes);
  in_pieces = !block;
  if (in_pieces)
    return false;
  shares_.take(who, 0);
  to.shares_.take(who, 0);
  auto self = to.weak_from_this().lock();
  if (!self)
    return false; // it is being destroyed, and waits for the lock
  // Nothing throws from here on: the party is known to both.
  shares_.take(who, size_bytes);
  to.shares_.take(who, size_bytes);
  a.used_bytes += size_bytes;
  a.lent_bytes += size_bytes;
  ++a.lent_count;
  if (r.round != round_) {
    ++to.waits_;
    to.waited_us_ += static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(steady_clock::now() - r.asked_at)
        .count());
  }
  r.owner->from = std::move(self);
  r.owner->block = std::move(block->owner);
  r.outcome = memory_block{block->data, block->size_bytes, std::move(r.owner)};
  return true;
} catch (const std::bad_alloc&) {
  return true; // its outcome says so
}

staging_memory::lease::~lease() {
  if (!from)
    return;
  block.reset();
  if (!is_planted(defect::staging_lease_kept))
    from->memory_->give_back(*this);
}

void staging_memory::give_back(const lease& back) {
  std::unique_lock lock{mutex_};
  auto& to = *back.from;
  shares_.give_back(back.who, back.size_bytes);
  to.shares_.give_back(back.who, back.size_bytes);
  to.account_.used_bytes -= back.size_bytes;
  if (waiting_ == 0)
    return unlock(lock, must_call(to));
  serve(std::move(lock));
}

bool staging_memory::must_call(staging_lender& of) {
  auto& a = of.account_;
  auto is_short = a.short_bytes > 0;
  auto has_free = a.called_back_bytes > 0 && a.unused_bytes() >= a.called_back_bytes;
  of.called_short_ &= is_short;
  of.called_free_ &= has_free;
  if (!call_ || !(is_short || has_free))
    return false;
  // One with blocks lent goes on with them, and the manager looks from time to time.
  auto has_nothing = is_short && !of.called_short_ && a.used_bytes == 0;
  auto has_lent = a.lent_bytes - of.called_at_bytes_ >= rules_.block_bytes ||
    a.lent_count - of.called_at_count_ >= rules_.turn_count;
  if (!has_nothing && !(has_lent && (is_short || !of.called_free_)))
    return false;
  ++of.calls_;
  of.called_short_ = is_short;
  of.called_free_ = has_free;
  of.called_at_bytes_ = a.lent_bytes;
  of.called_at_count_ = a.lent_count;
  return true;
}

staging_lender::staging_lender(std::shared_ptr<memory_source> memory)
  : staging_lender(std::make_shared<staging_memory>(memory), {}, memory->capacity_bytes()) {
  account_.budget_bytes = account_.quota_bytes;
}

staging_lender::staging_lender(
  std::shared_ptr<staging_memory> memory, std::string name, std::uint64_t quota_bytes)
  : memory_(std::move(memory)), shares_(std::min(quota_bytes, memory_->capacity_bytes())) {
  account_.name = std::move(name);
  account_.quota_bytes = shares_.places();
  std::lock_guard guard{memory_->mutex_};
  at_ = memory_->lenders_.insert(memory_->lenders_.end(), this);
}

// Its budget is free again.
staging_lender::~staging_lender() {
  std::unique_lock lock{memory_->mutex_};
  memory_->lenders_.erase(at_);
  memory_->waiting_ -= waiting();
  memory_->unlock(lock, true);
}

void staging_lender::ask(
  staging_claim claim, std::uint64_t size_bytes, completion<memory_block> granted) {
  // Shares count what allocations take.
  size_bytes = (size_bytes + border_bytes - 1) / border_bytes * border_bytes;
  auto capacity_bytes = memory_->capacity_bytes();
  if (size_bytes > capacity_bytes)
    return granted(fail(
      errc::no_space, "a window of {} bytes, but the staging memory has {} in all", size_bytes,
      capacity_bytes));
  if (size_bytes > account_.quota_bytes)
    return granted(fail(
      errc::no_space,
      "a window of {} bytes, but provider {} may hold {} bytes of staging memory "
      "(providers[].staging_percent)",
      size_bytes, account_.name, account_.quota_bytes));
  staging_memory::request r{
    std::make_shared<staging_memory::lease>(std::move(claim.who), size_bytes), claim.deadline,
    claim.need, std::move(granted)};
  auto& m = *memory_;
  std::unique_lock lock{m.mutex_};
  account_.largest_bytes = std::max(account_.largest_bytes, size_bytes);
  r.round = m.round_;
  auto in_pieces = false;
  if (m.waiting_ == 0 && m.lend(*this, claim.use, r, in_pieces)) {
    m.end_turn(*this);
    m.unlock(lock, m.must_call(*this));
    return staging_memory::answer(r);
  }
  push(claim.use, std::move(r));
  m.serve(std::move(lock));
}

void staging_lender::push(staging_use use, staging_memory::request r) {
  if (r.need) {
    auto& known = r.need->waits_at_;
    if (std::ranges::find(known, this, &std::shared_ptr<staging_lender>::get) == known.end())
      known.push_back(shared_from_this());
  }
  r.asked_at = steady_clock::now();
  staging_memory::requests one;
  one.push_back(std::move(r));
  auto who = one.front().owner->who;
  waiting_[static_cast<std::size_t>(use)].push(std::move(who), std::move(one));
  ++memory_->waiting_;
}

template <class Is>
staging_memory::requests staging_lender::remove(Is is) {
  staging_memory::requests removed;
  for (auto& queue : waiting_)
    while (auto one = queue.remove([&](auto& r) { return is(r.front()); }))
      removed.splice(removed.end(), *one);
  memory_->waiting_ -= removed.size();
  return removed;
}

void staging_lender::withdraw(const staging_need& need) {
  staging_memory::requests gone; // ends without the lock, and perhaps what asked with it
  std::unique_lock lock{memory_->mutex_};
  gone = remove([&](auto& r) { return r.need == &need; });
  if (!gone.empty())
    memory_->serve(std::move(lock));
}

void staging_need::end() {
  for (auto& lender : std::exchange(waits_at_, {}))
    lender->withdraw(*this);
}

std::uint64_t staging_lender::waiting() const noexcept {
  std::uint64_t all = 0;
  for (auto& queue : waiting_)
    all += queue.size();
  return all;
}

} // namespace millrace::actors
