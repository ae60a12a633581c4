// Moves chunks while the ring has some, or room for some, and waits at the ring otherwise.
#include <millrace/actors/broadcast/broadcast_choice.hpp>
#include <millrace/core/background_thread.hpp>
#include <millrace/runtime/client/calls/group_lane.hpp>

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

namespace millrace::runtime {

namespace {

using transport::chunk_head;
using transport::store_mode;

// What a chunk is to its broadcast.
enum chunk_kind : std::uint16_t { more_follow = 0, last = 1, given_up = 2 };

constexpr std::size_t waiting_max = 1024;
// The thread of a lane looks so often for broadcasts that nobody waits for, and for so long after
// the last one. Then it sleeps until it is woken, which costs whoever begins a broadcast some
// microseconds.
constexpr std::chrono::milliseconds looks_every{1}, looks_for{200};
constexpr std::size_t ranks_named_max = 16;
constexpr std::uint64_t at_once_max = 64 << 10; // bytes

double seconds_since(time_point begun) {
  return std::chrono::duration<double>(steady_clock::now() - begun).count();
}

} // namespace

std::optional<std::uint32_t> lane_members::place_of(std::uint32_t rank) const {
  auto at = std::ranges::lower_bound(members, rank, {}, &group_rank::rank);
  if (at == members.end() || at->rank != rank)
    return std::nullopt;
  return static_cast<std::uint32_t>(at - members.begin());
}

struct group_lane::broadcast {
  std::uint64_t number = 0;
  bool sends = false;
  std::uint32_t root = 0;
  transport::gather_list bytes;
  time_point begun, deadline;
  promise<broadcast_receipt> done;

  std::uint64_t passed = 0; // bytes; with the turn
  bool is_over = false;     // all of it has passed; with the turn
  std::mutex touching;      // held while the tensors are copied
  bool dropped = false;     // with `touching`: they are not touched any more
};

// The right to move chunks, which one thread has at a time.
class group_lane::turn {
public:
  explicit turn(group_lane& of) : of_(of), has_(!of.taken_.exchange(true)) {}
  ~turn() {
    if (has_)
      of_.taken_.store(false);
  }
  turn(const turn&) = delete;
  turn& operator=(const turn&) = delete;

  explicit operator bool() const noexcept { return has_; }

private:
  group_lane& of_;
  const bool has_;
};

std::shared_ptr<group_lane> group_lane::begin(
  lane_members who, std::unique_ptr<transport::chunk_ring> ring) {
  std::shared_ptr<group_lane> out{new group_lane{std::move(who), std::move(ring)}};
  if (out->ring_)
    out->thread_ = background_thread([out] { out->run(); });
  return out;
}

void group_lane::stop(const status& why) {
  end(why);
  std::thread own;
  {
    std::lock_guard guard{mutex_};
    stopping_ = true;
    own.swap(thread_);
  }
  changed_.notify_all();
  nudge();
  // A continuation of a broadcast may drop the group.
  if (own.joinable())
    own.get_id() == std::this_thread::get_id() ? own.detach() : own.join();
}

future<broadcast_receipt> group_lane::add(
  transport::gather_list bytes, std::uint32_t root, time_point deadline) {
  auto b = std::make_shared<broadcast>();
  b->sends = root == who_.self;
  b->root = root;
  b->bytes = std::move(bytes);
  b->begun = steady_clock::now();
  b->deadline = deadline;
  b->done = promise<broadcast_receipt>{shared_from_this()};
  // The caller does not have the future yet, so it cannot have cancelled.
  static_cast<void>(b->done.on_cancel([weak = weak_from_this(), which = std::weak_ptr{b}] {
    auto one = which.lock();
    if (!one)
      return;
    drop(*one);
    if (auto self = weak.lock())
      self->attend();
  }));
  auto is_first = false;
  {
    std::lock_guard guard{mutex_};
    if (auto& why = ended_.ok() ? paused_ : ended_; !why.ok())
      return ready_future<broadcast_receipt>(fail(why));
    if (!ring_) // this member is alone
      return ready_future<broadcast_receipt>(receipt_of(*b, last_number_++));
    if (queue_.size() == waiting_max)
      return ready_future<broadcast_receipt>(fail(
        errc::busy, "{} broadcasts of group {} wait; wait for one of them", waiting_max,
        who_.group));
    b->number = last_number_++;
    is_first = queue_.empty();
    queue_.push_back(b);
    if (sleeps_)
      changed_.notify_all();
  }
  // A small one that finds all it needs is over at once. The call copies no more than that.
  if (is_over_ || (is_first && b->bytes.size_bytes() <= at_once_max))
    if (turn mine{*this}; mine)
      settle();
  if (!is_first)
    nudge(); // who waits at the ring may have to wait less long
  return b->done.get_future();
}

void group_lane::pause(const status& why) {
  std::deque<broadcast_ptr> all;
  {
    std::lock_guard guard{mutex_};
    paused_ = why;
    all = queue_;
  }
  for (auto& b : all)
    fail_one(*b, why);
  attend();
}

void group_lane::resume() {
  std::lock_guard guard{mutex_};
  paused_ = {};
}

void group_lane::end(const status& why) {
  {
    std::lock_guard guard{mutex_};
    if (!ended_.ok())
      return;
    ended_ = why;
  }
  fail_all(why);
  changed_.notify_all();
  nudge();
}

void group_lane::over(const status& why) {
  {
    std::lock_guard guard{mutex_};
    if (is_over_)
      return;
    over_ = why;
    is_over_ = true;
  }
  attend();
  if (turn mine{*this}; mine)
    settle();
}

// Goes on, and fails what cannot.
group_lane::blocked_on group_lane::settle() {
  auto was_over = is_over_.load(); // before the look at what lies in the ring
  auto blocked = go_on();
  if (blocked == blocked_on::nothing || blocked == blocked_on::the_caller || !was_over)
    return blocked;
  fail_all(over_); // it does not change any more
  return blocked_on::nothing;
}

group_lane::broadcast_ptr group_lane::first() const {
  std::lock_guard guard{mutex_};
  return queue_.empty() ? nullptr : queue_.front();
}

// Goes on until it must wait, or nothing is left.
group_lane::blocked_on group_lane::go_on() {
  auto blocked = blocked_on::nothing;
  while (auto b = first()) {
    blocked = b->sends ? send(*b) : receive(*b);
    if (!b->is_over)
      break;
    finish(b);
    blocked = blocked_on::nothing;
    if (leaves_ && (*leaves_)())
      return blocked_on::the_caller;
  }
  return blocked;
}

// The first chunk says that there is a broadcast, even one without bytes.
group_lane::blocked_on group_lane::send(broadcast& b) {
  for (auto next = ring_->position(); !b.is_over; ++next) {
    if (is_over_ || ring_->ended())
      return blocked_on::space; // some member would not get it
    // Another member may take itself for the root, too. The first one is.
    if (b.passed == 0 && !ring_->claim(next)) {
      fail_one(
        b,
        {errc::invalid_argument, "broadcast {} of group {} has another root than {}", b.number,
         who_.group, rank_at(who_.self)});
      b.sends = false;
      return receive(b);
    }
    auto has_room = ring_->can_write(next);
    if (!has_room)
      return damaged(has_room.error());
    if (!*has_room)
      return blocked_on::space;
    chunk_head head;
    head.tag = b.number;
    head.total_bytes = b.bytes.size_bytes();
    head.offset = b.passed;
    head.root = who_.self;
    std::lock_guard touching{b.touching};
    if (b.dropped) {
      head.kind = given_up;
      b.is_over = true;
    } else {
      auto length = std::min(ring_->shape().chunk_bytes, head.total_bytes - b.passed);
      b.bytes.read(b.passed, ring_->room(next), length, store_mode::cached);
      b.passed += length;
      b.is_over = b.passed == head.total_bytes;
      head.payload_bytes = static_cast<std::uint32_t>(length);
      head.kind = b.is_over ? last : more_follow;
    }
    ring_->publish(next, head);
    if (!b.is_over && must_pause(b))
      return blocked_on::the_caller;
  }
  return blocked_on::nothing;
}

group_lane::blocked_on group_lane::receive(broadcast& b) {
  for (auto next = ring_->position(); !b.is_over; ++next) {
    auto head = ring_->look(next);
    if (!head)
      return damaged(head.error());
    if (!*head)
      return blocked_on::chunk;
    if ((*head)->tag != b.number || (*head)->root == who_.self)
      return damaged({errc::protocol_error, "chunk {} belongs to another broadcast", next});
    b.is_over = take(b, next, **head);
    ring_->done(next);
    if (!b.is_over && must_pause(b))
      return blocked_on::the_caller;
  }
  return blocked_on::nothing;
}

// Chunks may come without a pause.
bool group_lane::must_pause(broadcast& b) {
  fail_if_late(b, steady_clock::now());
  return (leaves_ && (*leaves_)()) || stopping_;
}

// Nothing that comes after it can be believed.
group_lane::blocked_on group_lane::damaged(const status& why) {
  end(why.within("the ring of group " + who_.group));
  return blocked_on::nothing;
}

// Returns true after the last chunk.
bool group_lane::take(broadcast& b, std::uint64_t number, const chunk_head& head) {
  status bad;
  if (head.root != b.root)
    bad = {
      errc::invalid_argument,
      "broadcast {} of group {}: {} sends, and this member expects {}",
      b.number,
      who_.group,
      rank_at(head.root),
      rank_at(b.root)};
  else if (head.kind == given_up)
    bad = {
      errc::cancelled, "{}, the root, gave up broadcast {} of group {}", rank_at(b.root), b.number,
      who_.group};
  else if (head.total_bytes != b.bytes.size_bytes())
    bad = {
      errc::invalid_argument,
      "broadcast {} of group {}: {}, the root, sends {} bytes, and the tensors here have {}",
      b.number,
      who_.group,
      rank_at(b.root),
      head.total_bytes,
      b.bytes.size_bytes()};
  else if (
    head.kind > given_up || head.offset != b.passed ||
    head.payload_bytes > head.total_bytes - b.passed ||
    (head.kind == last && head.payload_bytes != head.total_bytes - b.passed))
    bad = {
      errc::protocol_error, "broadcast {} of group {} has other bytes than it should", b.number,
      who_.group};
  if (!bad.ok()) {
    fail_one(b, bad);
  } else {
    std::lock_guard touching{b.touching};
    auto mode = head.total_bytes >= transport::streaming_bytes_min ? store_mode::streaming
                                                                   : store_mode::cached;
    if (!b.dropped)
      b.bytes.write(b.passed, ring_->payload(number), head.payload_bytes, mode);
    if (mode == store_mode::streaming)
      transport::streaming_fence();
    b.passed += head.payload_bytes;
  }
  return head.kind != more_follow;
}

void group_lane::finish(const broadcast_ptr& b) {
  {
    std::lock_guard guard{mutex_};
    if (!queue_.empty() && queue_.front() == b)
      queue_.pop_front();
  }
  b->done.set(receipt_of(*b, b->number));
}

broadcast_receipt group_lane::receipt_of(const broadcast& b, std::uint64_t number) const {
  broadcast_receipt out;
  out.number = number;
  out.size_bytes = b.bytes.size_bytes();
  out.chunk_bytes = ring_ ? ring_->shape().chunk_bytes : 0;
  out.measured_s = seconds_since(b.begun);
  out.predicted_s =
    actors::shared_host_s({}, who_.members.size(), static_cast<double>(out.size_bytes));
  return out;
}

// Returns when its tensors are not touched any more.
void group_lane::drop(broadcast& b) {
  std::lock_guard touching{b.touching};
  b.dropped = true;
}

void group_lane::fail_one(broadcast& b, const status& why) {
  drop(b);
  b.done.set(fail(why));
}

void group_lane::fail_all(const status& why) {
  std::deque<broadcast_ptr> all;
  {
    std::lock_guard guard{mutex_};
    all.swap(queue_);
  }
  for (auto& b : all)
    fail_one(*b, why);
}

std::string group_lane::rank_at(std::uint32_t place) const {
  if (place >= who_.members.size())
    return "a member that is none";
  auto& one = who_.members[place];
  return fmt::format("rank {} ({})", one.rank, one.who);
}

std::string group_lane::whom_it_awaits(const broadcast& first) const {
  if (!first.sends)
    return fmt::format("{}, the root, has sent {} of its bytes", rank_at(first.root), first.passed);
  std::string out;
  std::size_t named = 0;
  auto next = ring_->position();
  auto behind = ring_->laggards(next - std::min<std::uint64_t>(next, ring_->shape().chunks));
  for (auto place : behind)
    if (++named <= ranks_named_max)
      out += (named == 1 ? "" : ", ") + rank_at(place);
  if (behind.size() > ranks_named_max)
    out += fmt::format(" and {} others", behind.size() - ranks_named_max);
  return out + (behind.size() == 1 ? " has" : " have") + " not read what was sent";
}

status group_lane::late(const broadcast& b) const {
  auto blocking = first();
  if (!blocking)
    return {errc::deadline_exceeded, "broadcast {} of group {}", b.number, who_.group};
  auto before = blocking->number == b.number
    ? std::string{}
    : fmt::format("it waits for broadcast {}: ", blocking->number);
  return {
    errc::deadline_exceeded,
    "broadcast {} of group {} did not end in its time: {}{}",
    b.number,
    who_.group,
    before,
    whom_it_awaits(*blocking)};
}

void group_lane::fail_if_late(broadcast& b, time_point now) {
  if (now >= b.deadline && !b.done.get_future().ready())
    fail_one(b, late(b));
}

void group_lane::fail_late() {
  std::vector<broadcast_ptr> all;
  auto now = steady_clock::now();
  {
    std::lock_guard guard{mutex_};
    std::ranges::copy_if(
      queue_, std::back_inserter(all), [&](auto& b) { return b->deadline <= now; });
  }
  for (auto& b : all)
    fail_if_late(*b, now);
}

time_point group_lane::next_deadline() const {
  auto out = time_point::max();
  std::lock_guard guard{mutex_};
  for (auto& b : queue_)
    if (!b->done.get_future().ready())
      out = std::min(out, b->deadline);
  return out;
}

// Whatever ends the waiting, the caller looks again. Of a ring that the node has ended nothing more
// comes, and the reason is on its way.
void group_lane::wait(blocked_on what, time_point until) {
  auto next = ring_->position();
  status why;
  if (what == blocked_on::space)
    why = ring_->wait_room(next, until);
  else if (auto came = ring_->wait_chunk(next, until); !came)
    why = came.error();
  if (why.code() != errc::unavailable)
    return;
  std::unique_lock lock{mutex_};
  changed_.wait_until(lock, std::min(until, steady_clock::now() + looks_every));
}

// Returns true if something is left to wait for.
bool group_lane::step(time_point until) {
  auto blocked = settle();
  fail_late();
  if (blocked == blocked_on::chunk || blocked == blocked_on::space)
    wait(blocked, std::min(until, next_deadline()));
  return blocked != blocked_on::nothing;
}

void group_lane::help(const std::function<bool()>& done, time_point deadline) {
  turn mine{*this};
  if (!mine)
    return;
  std::function<bool()> leaves = [&] { return done() || steady_clock::now() >= deadline; };
  leaves_ = &leaves;
  while (!leaves() && step(deadline)) {
  }
  leaves_ = nullptr;
}

void group_lane::nudge() noexcept {
  if (ring_)
    ring_->interrupt();
}

void group_lane::attend() noexcept {
  {
    std::lock_guard guard{mutex_};
    attended_ = true;
  }
  changed_.notify_all();
  nudge();
}

void group_lane::run() {
  pthread_setname_np(pthread_self(), "mr.group");
  auto used = steady_clock::now();
  std::unique_lock lock{mutex_};
  while (!stopping_) {
    sleeps_ = queue_.empty() && steady_clock::now() - used > looks_for;
    auto wake = [this] { return stopping_ || attended_ || (sleeps_ && !queue_.empty()); };
    if (sleeps_)
      changed_.wait(lock, wake);
    else
      changed_.wait_for(lock, looks_every, wake);
    sleeps_ = attended_ = false;
    if (queue_.empty())
      continue;
    used = steady_clock::now();
    lock.unlock();
    if (turn mine{*this}; mine)
      while (!stopping_ && step(time_point::max())) {
      }
    lock.lock();
  }
}

} // namespace millrace::runtime
