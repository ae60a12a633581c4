// Lends staging memory within the budgets of lenders, and when it comes back.
#include <millrace/actors/staging/staging_lender.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/planted_defect.hpp>

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
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
  std::lock_guard guard{mutex_};
  call_.swap(call);
  rules_ = rules;
  if (call_)
    refused_ = {};
}

std::chrono::milliseconds staging_memory::share_out(time_point now) {
  std::unique_lock lock{mutex_};
  auto late = remove_waiting(
    [now](const request& one) { return one.deadline < now; },
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
std::vector<staging_memory::request> staging_memory::remove_waiting(Is is, Why why) {
  std::vector<request> removed;
  for (auto* l : lenders_)
    for (auto& queue : l->waiting_)
      while (auto r = queue.remove(is)) {
        r->outcome = fail(why(*l));
        removed.push_back(std::move(*r));
      }
  return removed;
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

void staging_memory::serve(std::unique_lock<std::mutex> lock, std::vector<request> served) {
  for (auto* l : lenders_)
    l->account_.short_bytes = 0;
  auto in_pieces = false;
  while (serve_next(served, in_pieces))
    ++turn_;
  if (!refused_.ok())
    std::ranges::move(
      remove_waiting([](auto&) { return true; }, [this](auto&) { return refused_; }),
      std::back_inserter(served));
  ++round_;
  auto call = must_call() ? call_ : nullptr;
  lock.unlock();
  if (call)
    call();
  for (auto& r : served)
    answer(r);
}

// An operation that does not take its answer ends at its deadline, and the others get theirs.
void staging_memory::answer(request& r) {
  try {
    r.granted(std::move(r.outcome));
  } catch (const std::exception& e) {
    log().error("a request for staging memory could not be answered: {}", e.what());
  }
}

bool staging_memory::serve_next(std::vector<request>& served, bool& in_pieces) {
  for (auto use : order_of(turn_))
    for (auto at = lenders_.begin(); at != lenders_.end(); ++at) {
      auto may = [&, to = *at](const party& who, request& r) {
        return lend(*to, use, who, r, in_pieces);
      };
      if (auto one = (*at)->waiting_[static_cast<std::size_t>(use)].next(may)) {
        served.push_back(std::move(one->second));
        lenders_.splice(lenders_.end(), lenders_, at);
        return true;
      }
    }
  return false;
}

bool staging_memory::lend(
  staging_lender& to, staging_use use, const party& who, request& r, bool& in_pieces) {
  auto& a = to.account_;
  auto fits = shares_.fits(who, r.size_bytes) && to.shares_.fits(who, r.size_bytes);
  auto has_its_share = !fits && !who.process.is_nil() && shares_.taken_by(who) > 0;
  // The first request of a process that has less than its share waits for budget before all others
  // of its lender, and for memory before all others, also when what is free lies in pieces.
  if (in_pieces || a.short_bytes > 0 || has_its_share)
    return false;
  if (a.used_bytes + r.size_bytes + a.called_back_bytes > a.budget_bytes) {
    a.short_bytes = r.size_bytes;
    a.short_use = use;
    return false;
  }
  if (!fits)
    return false;
  auto block = memory_->allocate(r.size_bytes, border_bytes);
  in_pieces = !block;
  if (in_pieces)
    return false;
  auto self = to.weak_from_this().lock();
  if (!self)
    return false; // it is being destroyed, and waits for the lock
  shares_.take(who, r.size_bytes);
  to.shares_.take(who, r.size_bytes);
  a.used_bytes += r.size_bytes;
  a.lent_bytes += r.size_bytes;
  ++a.lent_count;
  if (r.round != round_) {
    ++to.waits_;
    to.waited_us_ += static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(steady_clock::now() - r.asked_at)
        .count());
  }
  auto returns = [self = std::move(self), who, size_bytes = r.size_bytes,
                  owner = std::move(block->owner)](void*) mutable {
    owner.reset();
    if (is_planted(defect::staging_lease_kept))
      return;
    auto& memory = *self->memory_;
    std::unique_lock lock{memory.mutex_};
    memory.shares_.give_back(who, size_bytes);
    self->shares_.give_back(who, size_bytes);
    self->account_.used_bytes -= size_bytes;
    memory.serve(std::move(lock));
  };
  r.outcome = memory_block{block->data, block->size_bytes, {block->data, std::move(returns)}};
  return true;
}

bool staging_memory::must_call() {
  auto any = false;
  for (auto* l : lenders_) {
    auto& a = l->account_;
    auto is_short = a.short_bytes > 0;
    auto has_free = a.called_back_bytes > 0 && a.unused_bytes() >= a.called_back_bytes;
    l->called_short_ &= is_short;
    l->called_free_ &= has_free;
    if (!call_ || !(is_short || has_free))
      continue;
    // One with blocks lent goes on with them, and the manager looks from time to time.
    auto has_nothing = is_short && !l->called_short_ && a.used_bytes == 0;
    auto has_lent = a.lent_bytes - l->called_at_bytes_ >= rules_.block_bytes ||
      a.lent_count - l->called_at_count_ >= rules_.turn_count;
    if (!has_nothing && !(has_lent && (is_short || !l->called_free_)))
      continue;
    ++l->calls_;
    any = true;
    l->called_short_ = is_short;
    l->called_free_ = has_free;
    l->called_at_bytes_ = a.lent_bytes;
    l->called_at_count_ = a.lent_count;
  }
  return any;
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
  memory_->lenders_.push_back(this);
}

// Its budget is free again.
staging_lender::~staging_lender() {
  std::unique_lock lock{memory_->mutex_};
  memory_->lenders_.remove(this);
  auto call = memory_->call_;
  lock.unlock();
  if (call)
    call();
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
  std::unique_lock lock{memory_->mutex_};
  account_.largest_bytes = std::max(account_.largest_bytes, size_bytes);
  waiting_[static_cast<std::size_t>(claim.use)].push(
    std::move(claim.who),
    {size_bytes, claim.deadline, steady_clock::now(), memory_->round_, std::move(granted)});
  memory_->serve(std::move(lock));
}

std::uint64_t staging_lender::waiting() const noexcept {
  std::uint64_t all = 0;
  for (auto& queue : waiting_)
    all += queue.size();
  return all;
}

} // namespace millrace::actors
