// Keeps watches by name and by deadline, and gathers the news of each connection.
#include <millrace/actors/open_answers.hpp>
#include <millrace/actors/watch_table.hpp>

#include <algorithm>
#include <chrono>
#include <ratio>
#include <vector>

namespace millrace::actors {

namespace {

// The most outcomes in one answer, so that it fits in the smallest frame that `channel.frame_max`
// allows, also if each names a provider or a group.
constexpr std::size_t told_max = 256;

// Deadlines are rounded up to this, so that a peer cannot make many timers.
using deadline_step = std::chrono::duration<std::int64_t, std::ratio<1, 4>>;

} // namespace

status watch_table::add(const watcher& who, const watch_request& what, time_point deadline) {
  key which{who, what.number};
  if (what.number == 0 || watches_.contains(which))
    return {
      errc::invalid_argument, "a watch of {} has the number {}, which is 0 or that of another one",
      what.name, what.number};
  auto& holder = what.from.holder;
  if (!places_.take(holder))
    return refusal(holder);
  auto& l = listeners_.try_emplace(who, listener{holder, 0, {}, {}, {}}).first->second;
  ++l.parked;
  time_point rounded = std::chrono::ceil<deadline_step>(deadline);
  watches_.emplace(which, watch{what.name, what.any, what.than, rounded});
  by_name_[what.name].insert(which);
  expect(rounded, which);
  return {};
}

status watch_table::refusal(const party& who) const {
  return {
    errc::busy,
    "provider {} has {} watches, {} of them of this process (limits.watches_max, which processes "
    "share); try again later",
    provider_, places_.taken(), places_.taken_by(who)};
}

void watch_table::expect(time_point when, const key& what) {
  deadlines_.emplace(when, what);
  if (when < armed_for_) {
    armed_for_ = when;
    look_at_(when);
  }
}

// Its place stays taken.
void watch_table::forget(std::map<key, watch>::iterator at) {
  auto& [which, w] = *at;
  deadlines_.erase({w.deadline, which});
  auto named = by_name_.find(w.name);
  named->second.erase(which);
  if (named->second.empty())
    by_name_.erase(named);
  --listeners_.at(which.first).parked;
  watches_.erase(at);
}

void watch_table::remove(const watcher& who, std::uint64_t number) {
  auto listens = listeners_.find(who);
  if (listens == listeners_.end())
    return;
  auto& l = listens->second;
  auto at = watches_.find({who, number});
  if (at != watches_.end())
    forget(at);
  else if (auto over = std::ranges::find(l.over, number, &watch_outcome::number);
           over != l.over.end())
    l.over.erase(over);
  else
    return;
  places_.give_back(l.holder);
  answer(listens);
}

void watch_table::tell(const watcher& who, time_point until, promise rp) {
  auto at = listeners_.find(who);
  if (at == listeners_.end()) {
    rp.deliver(watch_news{});
    return;
  }
  auto& l = at->second;
  if (l.asked)
    answer(at, true);
  l.asked = std::move(rp);
  l.until = std::chrono::ceil<deadline_step>(until);
  expect(l.until, {who, 0});
  answer(at);
}

// Answers if there is something to say: an outcome, or that no watch is left.
void watch_table::answer(listeners::iterator at, bool is_late) {
  auto& [who, l] = *at;
  if (l.asked && (is_late || !l.over.empty() || l.parked == 0)) {
    watch_news news;
    auto count = std::min(l.over.size(), told_max);
    auto last = l.over.begin() + static_cast<std::ptrdiff_t>(count);
    news.items.assign(std::make_move_iterator(l.over.begin()), std::make_move_iterator(last));
    l.over.erase(l.over.begin(), last);
    if (count > 0)
      places_.give_back(l.holder, count);
    news.more = l.parked > 0 || !l.over.empty();
    deadlines_.erase({l.until, {who, 0}});
    auto rp = std::move(*l.asked);
    l.asked.reset();
    answer_with(rp, result<watch_news>{std::move(news)});
  }
  if (l.parked == 0 && l.over.empty() && !l.asked)
    listeners_.erase(at);
}

// Its listener is answered after this, once for all that end together.
void watch_table::end(const key& which, const status& why) {
  forget(watches_.find(which));
  listeners_.at(which.first)
    .over.push_back(
      {which.second, static_cast<std::uint8_t>(why.code()),
       why.ok() ? std::string{} : why.detail()});
}

void watch_table::answer_all(const std::set<watcher>& ended) {
  for (auto& who : ended)
    if (auto at = listeners_.find(who); at != listeners_.end())
      answer(at);
}

void watch_table::reached(const std::string& name, std::uint64_t number) {
  auto named = by_name_.find(name);
  if (named == by_name_.end())
    return;
  std::vector<key> woken;
  for (auto& which : named->second)
    if (auto& w = watches_.at(which); w.any || number > w.than)
      woken.push_back(which);
  std::set<watcher> ended;
  for (auto& which : woken) {
    end(which, {});
    ended.insert(which.first);
  }
  answer_all(ended);
}

void watch_table::end_all(const status& why) {
  std::set<watcher> ended;
  while (!watches_.empty()) {
    key which = watches_.begin()->first;
    end(which, why);
    ended.insert(which.first);
  }
  answer_all(ended);
}

void watch_table::lose(const watcher& who) {
  auto listens = listeners_.find(who);
  if (listens == listeners_.end())
    return;
  auto& l = listens->second;
  places_.give_back(l.holder, l.parked + l.over.size());
  for (auto at = watches_.lower_bound({who, 0}); at != watches_.end() && at->first.first == who;)
    forget(at++);
  deadlines_.erase({l.until, {who, 0}});
  listeners_.erase(listens);
}

void watch_table::give_up(const status& why) {
  for (auto& [who, l] : std::exchange(listeners_, {}))
    if (l.asked)
      l.asked->deliver(to_caf_error(why));
  watches_.clear();
  by_name_.clear();
  deadlines_.clear();
}

void watch_table::look(time_point armed_for, time_point now) {
  if (armed_for != armed_for_)
    return;
  status late{
    errc::deadline_exceeded,
    "nothing newer came to provider {} in time (limits.request_timeout_max is the longest)",
    provider_};
  std::set<watcher> ended;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    auto which = deadlines_.begin()->second;
    if (which.second == 0) {
      answer(listeners_.find(which.first), true);
    } else {
      end(which, late);
      ended.insert(which.first);
    }
  }
  answer_all(ended);
  armed_for_ = deadlines_.empty() ? time_point::max() : deadlines_.begin()->first;
  if (!deadlines_.empty())
    look_at_(armed_for_);
}

} // namespace millrace::actors
