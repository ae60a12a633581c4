// Keeps the bounds of operations and their deadlines.
#include <millrace/actors/operation_lane.hpp>

#include <algorithm>

namespace millrace::actors {

thread_local actor_home* actor_home::running = nullptr;

void operation_lane::start(std::shared_ptr<operation> op) {
  reap();
  auto who = op->from().holder;
  if (may_run_.take(who))
    return run({std::move(who), std::move(op)});
  if (!may_wait_.take(who))
    return op->give_up(refusal(who));
  waiting_.push(std::move(who), std::move(op));
  busy_();
}

status operation_lane::refusal(const party& who) const {
  if (may_wait_.taken_by(who) == waiting_.size())
    return {
      errc::busy, "provider {} has {} requests waiting (limits.queued_max); try again later",
      provider_, waiting_.size()};
  return {
    errc::busy,
    "provider {} has {} requests waiting, {} of them from this process, which is its share "
    "(limits.queued_max); try again later",
    provider_, waiting_.size(), may_wait_.taken_by(who)};
}

void operation_lane::run(entry e) {
  try {
    e.op->begin();
  } catch (const std::exception& why) {
    e.op->give_up({errc::no_space, "provider {}: {}", provider_, why.what()});
  }
  // A small operation has ended by now.
  if (e.op->answered())
    return may_run_.give_back(e.who);
  running_.push_back(std::move(e));
  busy_();
}

void operation_lane::reap() {
  running_.remove_if([this](auto& e) {
    if (e.op->answered())
      may_run_.give_back(e.who);
    return e.op->answered();
  });
  auto may = [this](auto& who, auto& op) { return op->answered() || may_run_.fits(who); };
  while (auto next = waiting_.next(may)) {
    auto who = (*next)->from().holder;
    may_wait_.give_back(who);
    if (!(*next)->answered() && may_run_.take(who))
      run({std::move(who), std::move(*next)});
  }
}

void operation_lane::give_up_late(time_point now) {
  auto why = late(provider_, "finish");
  auto look = [&](auto& op) {
    if (!op->answered() && op->deadline() < now)
      op->give_up(why);
  };
  for (auto& e : running_)
    look(e.op);
  waiting_.for_each(look);
}

void operation_lane::give_up_all(const status& why) {
  waiting_.for_each([&](auto& op) { op->give_up(why); });
  for (auto& e : std::list{running_})
    e.op->give_up(why);
}

std::uint64_t operation_lane::unanswered() const {
  return static_cast<std::uint64_t>(
    std::count_if(running_.begin(), running_.end(), [](auto& e) { return !e.op->answered(); }));
}

} // namespace millrace::actors
