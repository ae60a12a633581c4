// Keeps the bounds of operations and their deadlines.
#include <millrace/actors/operation_lane.hpp>

#include <algorithm>

namespace millrace::actors {

thread_local actor_home* actor_home::running = nullptr;

void operation_lane::start(std::shared_ptr<operation> op) {
  reap();
  if (running_.size() < running_max_)
    return run(std::move(op));
  if (waiting_.size() >= queued_max_)
    return op->give_up(
      {errc::busy, "provider {} has {} requests waiting (limits.queued_max); try again later",
       provider_, waiting_.size()});
  waiting_.push_back(std::move(op));
  busy_();
}

void operation_lane::run(std::shared_ptr<operation> op) {
  try {
    op->begin();
  } catch (const std::exception& e) {
    op->give_up({errc::no_space, "provider {}: {}", provider_, e.what()});
  }
  // A small operation has ended by now.
  if (op->answered())
    return;
  running_.push_back(std::move(op));
  busy_();
}

void operation_lane::reap() {
  running_.remove_if([](auto& op) { return op->answered(); });
  while (!waiting_.empty() && running_.size() < running_max_) {
    auto op = std::move(waiting_.front());
    waiting_.pop_front();
    if (!op->answered())
      run(std::move(op));
  }
}

void operation_lane::give_up_late(time_point now) {
  auto why = late(provider_, "finish");
  for (auto& op : running_)
    if (!op->answered() && op->deadline() < now)
      op->give_up(why);
  for (auto& op : waiting_)
    if (op->deadline() < now)
      op->give_up(why);
}

void operation_lane::give_up_all(const status& why) {
  for (auto& op : waiting_)
    op->give_up(why);
  for (auto& op : std::list{running_})
    op->give_up(why);
}

std::uint64_t operation_lane::unanswered() const {
  return static_cast<std::uint64_t>(
    std::count_if(running_.begin(), running_.end(), [](auto& op) { return !op->answered(); }));
}

} // namespace millrace::actors
