// Draws a fault for every transfer when it is submitted. What does not happen at once waits in one
// list.
#include "faulty_driver.hpp"

#include <millrace/core/assert.hpp>

#include <algorithm>
#include <numeric>
#include <optional>

namespace millrace::testing {

using transport::transfer;
using transport::transfer_report;

faulty_driver::faulty_driver(
  std::shared_ptr<driver> inner, const fault_policy& policy, std::uint64_t seed,
  std::function<time_point()> now)
  : inner_(std::move(inner)), policy_(policy), dice_(seed), now_(std::move(now)) {}

faulty_driver::~faulty_driver() = default;

fault faulty_driver::draw() {
  auto& w = policy_.weights;
  auto at = dice_.below(std::accumulate(w.begin(), w.end(), std::uint64_t{0}));
  std::size_t i = 0;
  for (; at >= w[i]; ++i)
    at -= w[i];
  ++counts_[i];
  return static_cast<fault>(i);
}

time_point faulty_driver::soon() {
  return now_() +
    std::chrono::milliseconds{dice_.below(static_cast<std::uint64_t>(policy_.delay_max.count()))};
}

void faulty_driver::submit(transfer t, report done) {
  auto peer = t.remote.owner;
  auto what = draw();
  switch (what) {
  case fault::none:
    return tell(done, move_now(std::move(t)));
  case fault::error:
    t.hold.reset();
    return tell(done, fail(dice_.percent(50) ? errc::io_error : errc::peer_lost, "as drawn"));
  case fault::refuse:
    t.hold.reset();
    return tell(done, fail(errc::unsupported, "as drawn"));
  case fault::drop:
  case fault::forget:
    return keep({what, peer, time_point::max(), std::move(t), std::move(done), {}});
  case fault::delay:
  case fault::partial:
  case fault::late:
    break;
  }
  waiting w{what, peer, soon(), std::move(t), std::move(done), {}};
  // A delayed transfer moves its bytes now or when it reports.
  if (what == fault::delay && dice_.percent(50)) {
    w.outcome = move_now(std::move(w.move));
    w.moved = true;
  }
  keep(std::move(w));
}

result<transfer_report> faulty_driver::move_now(transfer t) {
  std::optional<result<transfer_report>> outcome;
  inner_->submit(std::move(t), [&](result<transfer_report> r) { outcome = std::move(r); });
  MILLRACE_ASSERT(outcome.has_value());
  return std::move(*outcome);
}

// Moves some whole ops, and a part of the next one.
void faulty_driver::move_some(transfer t) {
  if (t.ops.empty())
    return;
  std::vector<transport::copy_op> some{
    t.ops.begin(), t.ops.begin() + dice_.between(1, t.ops.size())};
  auto& last = some.back();
  last.length = dice_.between(std::min<std::uint64_t>(1, last.length), last.length);
  last.lead = last.tail = 0;
  t.ops = std::move(some);
  t.digests = false;
  std::ignore = move_now(std::move(t));
}

void faulty_driver::tell(const report& done, result<transfer_report> outcome) {
  ++ended_;
  done(std::move(outcome));
}

bool faulty_driver::step() {
  std::vector<waiting_list::iterator> due;
  for (auto i = waiting_.begin(); i != waiting_.end(); ++i)
    if (i->due <= now_())
      due.push_back(i);
  if (due.empty())
    return false;
  auto chosen = dice_.one_of(due);
  auto w = std::move(*chosen);
  waiting_.erase(chosen);
  end(std::move(w));
  return true;
}

void faulty_driver::end(waiting w) {
  switch (w.what) {
  case fault::partial:
    move_some(std::move(w.move));
    w.outcome = fail(errc::io_error, "after a part of the bytes, as drawn");
    break;
  case fault::late:
    w.outcome = fail(errc::peer_lost, "bytes may still come, as drawn");
    // Bytes that move later move only to and from memory that `hold` keeps.
    keep({fault::delay, w.peer, soon(), std::move(w.move), nullptr, {}});
    break;
  default:
    if (!w.moved)
      w.outcome = move_now(std::move(w.move));
  }
  // A transfer that only moves its late bytes has no completion.
  if (w.done)
    tell(w.done, std::move(w.outcome));
}

void faulty_driver::give_up(waiting& w) {
  auto why = status{errc::peer_lost, "the peer is gone"};
  if (w.done && w.what != fault::forget)
    tell(w.done, fail(why));
}

void faulty_driver::lose(const peer_id& peer) {
  lost_.insert(peer);
  waiting_list theirs;
  for (auto i = waiting_.begin(); i != waiting_.end();) {
    auto at = i++;
    if (at->peer == peer)
      theirs.splice(theirs.end(), waiting_, at);
  }
  for (auto& w : theirs) {
    give_up(w);
    // The peer's own threads may be in the middle of the copy.
    if (!w.moved && dice_.percent(30))
      keep({fault::delay, w.peer, soon(), std::move(w.move), nullptr, {}});
  }
}

void faulty_driver::end_all() {
  while (!waiting_.empty()) {
    auto w = std::move(waiting_.front());
    waiting_.pop_front();
    w.move.hold.reset();
    give_up(w);
  }
}

} // namespace millrace::testing
