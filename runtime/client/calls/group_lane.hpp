// The broadcasts of one member in one epoch of its group, one after the other, through the ring.
// Internal, behind `broadcast_group`.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/core/future.hpp>
#include <millrace/runtime/client/broadcast_group.hpp>
#include <millrace/transport/memory/gather_list.hpp>
#include <millrace/transport/ring/chunk_ring.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace millrace::runtime {

/// An epoch as one member has it.
struct lane_members {
  std::string group;
  std::vector<group_rank> members; // by rank; their places in the ring are their places here
  std::uint32_t self = 0;          // the place of this process

  /// Returns the place of a rank; none: it is no member.
  std::optional<std::uint32_t> place_of(std::uint32_t rank) const;
};

/// Takes broadcasts in the order of the calls, and moves their chunks. All members see the same
/// chunks in the same order: those of broadcast 0, then those of 1. So a broadcast that this member
/// has given up is still read, or ended, before the next one begins.
///
/// Whoever waits for a future moves the chunks meanwhile, so that a small broadcast wakes no
/// thread. A thread of the lane moves them while nobody waits.
/// Threads: any.
class group_lane final : public progress, public std::enable_shared_from_this<group_lane> {
public:
  /// `ring`: none for a member that is alone.
  static std::shared_ptr<group_lane> begin(
    lane_members who, std::unique_ptr<transport::chunk_ring> ring);
  /// Ends the lane. The first call waits for its thread, unless that is the caller.
  void stop(const status& why);

  const lane_members& who() const noexcept { return who_; }
  /// Adds a broadcast from the member at place `root`.
  future<broadcast_receipt> add(
    transport::gather_list bytes, std::uint32_t root, time_point deadline);
  /// Ends all broadcasts, and those to come, with an error. The first one counts.
  void end(const status& why);
  /// Fails all broadcasts, and those to come until `resume`. What others expect of this member is
  /// still done: a broadcast of its own is given up in the ring, and others are read.
  void pause(const status& why);
  void resume();
  /// The epoch is over. What lies in the ring is still received: a root may have gone after it sent
  /// all. So those that are left agree on what it had sent. The rest fails with `why`.
  void over(const status& why);

  void help(const std::function<bool()>& done, time_point deadline) override;
  void nudge() noexcept override;
  void attend() noexcept override;

private:
  struct broadcast;
  using broadcast_ptr = std::shared_ptr<broadcast>;
  class turn;

  // What the lane waits for. `the_caller`: nothing, but who drives it wants to leave.
  enum class blocked_on : std::uint8_t { nothing, chunk, space, the_caller };

  group_lane(lane_members who, std::unique_ptr<transport::chunk_ring> ring)
    : who_(std::move(who)), ring_(std::move(ring)) {}

  // With the turn:
  blocked_on go_on();
  blocked_on send(broadcast& b);
  blocked_on receive(broadcast& b);
  bool take(broadcast& b, std::uint64_t number, const transport::chunk_head& head);
  blocked_on damaged(const status& why);
  void wait(blocked_on what, time_point until);
  bool must_pause(broadcast& b);
  bool step(time_point until);
  blocked_on settle();
  void finish(const broadcast_ptr& b);
  broadcast_receipt receipt_of(const broadcast& b, std::uint64_t number) const;

  static void drop(broadcast& b);
  static void fail_one(broadcast& b, const status& why);
  void fail_all(const status& why);
  void fail_if_late(broadcast& b, time_point now);
  void fail_late();
  status late(const broadcast& b) const;
  std::string whom_it_awaits(const broadcast& first) const;
  broadcast_ptr first() const;
  time_point next_deadline() const;
  void run();
  std::string rank_at(std::uint32_t place) const;

  const lane_members who_;
  const std::unique_ptr<transport::chunk_ring> ring_;
  std::atomic<bool> taken_ = false;               // the turn
  const std::function<bool()>* leaves_ = nullptr; // whether who drives it wants to; with the turn
  std::atomic<bool> is_over_ = false;

  mutable std::mutex mutex_; // of the members below
  std::condition_variable changed_;
  std::deque<broadcast_ptr> queue_;
  std::uint64_t last_number_ = 0;
  status ended_, paused_, over_; // ok: it has not, and is not
  std::atomic<bool> stopping_ = false;
  bool attended_ = false, sleeps_ = false;
  std::thread thread_;
};

} // namespace millrace::runtime
