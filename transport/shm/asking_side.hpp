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

/// A move asked of the peer.
struct pending_move {
  completion<copied> done;
  std::uint64_t bytes = 0;   // that it copies
  std::uint64_t digests = 0; // how many the answer must bring
  std::shared_ptr<void> hold;
};

/// Threads: any; completions run without the lock.
class asking_side {
public:
  asking_side(
    std::shared_ptr<net::channel> c, std::uint64_t granule_bytes, const shm_options& options)
    : channel_(std::move(c)), granule_bytes_(granule_bytes), options_(options) {}

  /// Announces an arena once. Arenas the peer may not have are skipped (see `offer`).
  [[nodiscard]] status announce_arena(const std::shared_ptr<arena>& a);
  /// Lets the peer reach a part of an arena: announces it and, for an adopted file, grants the granules.
  /// Errors: `unsupported` for an adopted file or huge pages of the system's pool when the peer belongs to another user.
  [[nodiscard]] status offer(const arena_place& place, std::uint64_t length);
  /// Tells the peer which announced arenas are gone.
  void forget_freed();

  /// Asks the peer to move. While other moves are under way, the question may wait for the next one: true then, and
  /// `send_held` must follow soon. `done` runs once, also when the link closes. Errors: `busy`.
  bool ask(move request, pending_move pending);
  void on_answers(answers all);
  void send_held();
  /// Closes the channel to a peer that owes answers and gave none in time.
  void expire(time_point now);
  /// Fails what is under way. Returns what the peer may still be touching.
  std::vector<std::shared_ptr<void>> close(const status& why);

private:
  // How an arena of ours was announced.
  struct announced {
    std::weak_ptr<arena> what;
    std::set<std::uint64_t> granules; // granted
  };

  const net::peer_info& peer() const noexcept { return channel_->peer(); }
  bool gets(const arena& a) const noexcept;
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
  asks asks_held_;   // pending, but not asked yet
  time_point heard_; // an answer, or the question before any
  std::map<std::uint64_t, announced> announced_;
};

} // namespace millrace::transport::shm
