// Asks one peer to copy between its regions and arenas of this process.
// Part of `peer_link`.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/memory/arena.hpp>
#include <millrace/transport/shm/messages.hpp>
#include <millrace/transport/shm/shm_options.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

namespace millrace::transport::shm {

/// A move that the peer was asked to do.
struct pending_move {
  completion<copied> done;
  std::uint64_t bytes = 0;   // bytes to copy
  std::uint64_t digests = 0; // digests that the answer must bring
  std::shared_ptr<void> hold;
};

/// Asks for moves and matches the answers. Completions run without the lock.
/// Threads: any.
class asking_side {
public:
  asking_side(
    std::shared_ptr<net::channel> c, std::uint64_t granule_bytes, const shm_options& options)
    : channel_(std::move(c)), granule_bytes_(granule_bytes), options_(options) {}

  /// Announces an arena once. Skips an arena that the peer may not have (see `offer`).
  [[nodiscard]] status announce_arena(const std::shared_ptr<arena>& a);
  /// Lets the peer reach a part of an arena: announces the arena and, for an adopted file, grants
  /// the granules.
  /// Errors:  `unsupported` if the peer belongs to another user and the arena is an adopted file or
  ///          has huge pages of the system's pool, and for memory that is not for transfers.
  [[nodiscard]] status offer(const arena_place& place, std::uint64_t length);
  /// Lets the peer map an arena that is not for transfers: announces it once.
  /// Errors:  `unsupported` as for `offer`.
  [[nodiscard]] status lend(const std::shared_ptr<arena>& a);
  /// Tells the peer which announced arenas are gone.
  void forget_freed();

  /// Asks the peer to do a move. `done` runs once, also when the link closes. While other moves are
  /// under way, the question may be held until the next one; then this returns true, and
  /// `send_held` must follow soon.
  /// Errors:  `busy`.
  bool ask(move request, pending_move pending);
  void on_answers(answers all);
  void send_held();
  /// Closes the channel if the peer owes answers and has given none in time.
  void expire(time_point now);
  /// Fails the pending moves. Returns the memory that the peer may still be touching.
  std::vector<std::shared_ptr<void>> close(const status& why);

private:
  // The announcement of one of our arenas.
  struct announced {
    std::weak_ptr<arena> what;
    std::set<std::uint64_t> granules; // granted
  };

  const net::peer_info& peer() const noexcept { return channel_->peer(); }
  status may_get(const arena& a) const;
  status announce_locked(const std::shared_ptr<arena>& a);
  status grant_locked(const arena_place& place, std::uint64_t length);
  bool ask_later() const;
  void ask_now(asks due);
  void on_moved(moved answer);
  std::optional<pending_move> take(std::uint64_t number);

  const std::shared_ptr<net::channel> channel_;
  const std::uint64_t granule_bytes_;
  const shm_options options_;
  std::mutex mutex_;
  bool closed_ = false;
  std::uint64_t next_ = 1;
  std::unordered_map<std::uint64_t, pending_move> pending_;
  std::uint64_t pending_bytes_ = 0;
  asks asks_held_;   // pending, but not sent yet
  time_point heard_; // when the last answer came, or the first question after a pause
  std::map<std::uint64_t, announced> announced_;
};

} // namespace millrace::transport::shm
