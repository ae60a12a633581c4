// Collects what is not used, then serves who is short, one after the other.
#include <millrace/actors/staging/staging_shares.hpp>

#include <algorithm>
#include <tuple>
#include <utility>

namespace millrace::actors {

namespace {

using std::chrono::milliseconds;

// How soon blocks are collected that come back to lenders, while anyone is short.
constexpr milliseconds look_every{20};

class sharing {
public:
  sharing(
    std::uint64_t capacity_bytes, const std::vector<staging_account*>& accounts, time_point now,
    const staging_rules& rules)
    : all_(accounts), now_(now), rules_(rules), free_(capacity_bytes) {
    for (auto* a : all_) {
      note_activity(*a);
      collect(*a);
      free_ -= a->budget_bytes;
      in_use_ += is_idle(*a) ? 0u : 1u;
      if (a->short_bytes > 0)
        short_.push_back(a);
    }
    share_ = capacity_bytes / std::max(in_use_, std::uint64_t{1});
    std::ranges::stable_sort(short_, {}, [this](auto* a) { return rank(*a); });
  }

  milliseconds run() {
    // A lender that waits for what was called back is served before those that come after it.
    while (next_ < short_.size() && serve(*short_[next_], true))
      ++next_;
    // What is free then is more than the shares of those that need it.
    if (next_ == short_.size())
      for (auto* a : short_)
        serve(*a, false);
    if (!short_.empty())
      return look_every;
    auto held = std::ranges::any_of(all_, [](auto* a) { return a->budget_bytes > 0; });
    return held ? std::max(rules_.lease / 10, look_every) : milliseconds{0};
  }

private:
  void note_activity(staging_account& a) const {
    auto has_lent = std::exchange(a.seen_count, a.lent_count) != a.lent_count;
    if (has_lent || a.used_bytes > 0)
      a.active_at = now_;
    // The request that is short has waited since the one before it was served.
    if (a.short_bytes == 0)
      a.short_since = {};
    else if (has_lent || a.short_since == time_point{})
      a.short_since = now_;
  }

  // Takes what was called back and is free, and all that has not been used for a lease.
  void collect(staging_account& a) const {
    auto late = a.short_bytes == 0 && now_ - a.active_at >= rules_.lease;
    auto back = late ? a.unused_bytes() : std::min(a.called_back_bytes, a.unused_bytes());
    a.budget_bytes -= back;
    a.called_back_bytes = 0; // decided anew below
  }

  bool is_idle(const staging_account& a) const {
    return a.used_bytes == 0 && a.short_bytes == 0 &&
      (a.budget_bytes == 0 || now_ - a.active_at >= rules_.lease / 10);
  }

  std::tuple<staging_use, time_point> rank(const staging_account& a) const {
    auto long_since = now_ - a.short_since >= rules_.lease;
    return {long_since ? staging_use::restore : a.short_use, a.short_since};
  }

  bool turn_is_over(const staging_account& a) const {
    return a.lent_bytes - a.turn_bytes >= rules_.block_bytes ||
      a.lent_count - a.turn_counts >= rules_.turn_count || now_ - a.turn_at >= rules_.lease;
  }

  // Returns what is left to `a` when `wanting` is short.
  std::uint64_t floor_of(const staging_account& a, const staging_account& wanting) const {
    auto comes_later = std::find(short_.begin() + next_, short_.end(), &a) != short_.end();
    auto waits_after = comes_later && a.used_bytes == 0;
    auto takes_turns = std::max(a.largest_bytes, wanting.short_bytes) > share_;
    if (is_idle(a) || waits_after || (takes_turns && turn_is_over(a)))
      return 0;
    return std::max(share_, a.largest_bytes);
  }

  // Grants budget up to the share, which others must make room for, or up to the quota. Returns
  // false if budget is on its way that this one must get first.
  bool serve(staging_account& a, bool by_share) {
    auto needs = a.used_bytes + a.short_bytes;
    auto fair = std::max(share_, a.short_bytes);
    auto most = by_share ? std::min(a.quota_bytes, fair) : a.quota_bytes;
    if (needs > most || needs <= a.budget_bytes)
      return true;
    auto least = needs - a.budget_bytes;
    auto wanted = std::max(least, std::min(rules_.block_bytes, most - a.budget_bytes));
    if (by_share && free_ < wanted)
      call_back(wanted, a);
    if (free_ < least)
      return false;
    auto granted = std::min(wanted, free_);
    free_ -= granted;
    a.budget_bytes += granted;
    a.turn_at = a.active_at = now_;
    a.turn_bytes = a.lent_bytes;
    a.turn_counts = a.lent_count;
    return true;
  }

  // Takes budget from those that have most above what is left to them, until `wanted` is free. What
  // is lent is called back.
  void call_back(std::uint64_t wanted, const staging_account& wanting) {
    auto above = [&](const staging_account* a) {
      auto kept = floor_of(*a, wanting) + a->called_back_bytes;
      return a == &wanting ? 0 : a->budget_bytes - std::min(a->budget_bytes, kept);
    };
    auto missing = wanted - std::min(wanted, free_);
    auto order = all_;
    std::ranges::stable_sort(order, std::ranges::greater{}, above);
    for (auto* a : order) {
      auto taken = std::min(missing, above(a));
      missing -= taken;
      auto at_once = std::min(taken, a->unused_bytes());
      a->budget_bytes -= at_once;
      free_ += at_once;
      a->called_back_bytes += taken - at_once;
    }
  }

  const std::vector<staging_account*>& all_;
  const time_point now_;
  const staging_rules& rules_;
  std::uint64_t free_;
  std::uint64_t in_use_ = 0;
  std::uint64_t share_ = 0;
  std::vector<staging_account*> short_; // first who is served first
  std::size_t next_ = 0;                // the next lender in `short_`
};

} // namespace

milliseconds share_out(
  std::uint64_t capacity_bytes, const std::vector<staging_account*>& accounts, time_point now,
  const staging_rules& rules) {
  return sharing{capacity_bytes, accounts, now, rules}.run();
}

} // namespace millrace::actors
