// The shm driver's state for one peer: the arenas announced in either direction, and the moves in
// flight.
// Held by the driver, one for each channel.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/driver.hpp>
#include <millrace/transport/memory/arena.hpp>
#include <millrace/transport/memory/mapped_file.hpp>
#include <millrace/transport/shm/messages.hpp>
#include <millrace/transport/shm/shm_options.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

namespace millrace::transport::shm {

/// A move that was requested from the peer.
struct pending_move {
  completion<copied> done;
  std::uint64_t bytes = 0;   // bytes to copy
  std::uint64_t digests = 0; // the number that the answer must bring
  std::shared_ptr<void> hold;
};

/// Memory of this process that a transfer of the peer touches. One of `arena` and `file` is set.
struct reached_memory {
  std::byte* data = nullptr;
  std::shared_ptr<mapped_arena> arena; // null if the memory is a file's
  std::shared_ptr<mapped_file> file;

  /// Returns where the mapping begins.
  std::byte* begin() const noexcept { return arena ? arena->data() : file->data(); }
};

/// What a move of the peer uses while it runs.
struct move_weight {
  std::uint64_t bytes = 0;        // bytes to copy
  std::uint64_t memory_bytes = 0; // our memory for its pieces and its answer
};
move_weight weigh(const move& m);

/// Announces arenas, requests moves and runs the peer's moves. Completions run without the lock.
/// Threads: any.
class peer_link {
public:
  peer_link(
    std::shared_ptr<net::channel> c, std::uint64_t granule_bytes, const shm_options& options)
    : channel_(std::move(c)), granule_bytes_(granule_bytes), options_(options) {}

  const net::peer_info& peer() const noexcept { return channel_->peer(); }
  bool is_open() const noexcept { return channel_->is_open(); }

  // For our arenas and the peer's regions:

  /// Announces an arena once. Arenas that the peer may not have are skipped (see `offer`).
  [[nodiscard]] status announce_arena(const std::shared_ptr<arena>& a);
  /// Lets the peer reach a part of an arena: announces the arena, and grants the granules of an
  /// adopted file.
  /// Errors:  `unsupported` if the peer runs as another user, and the arena is an adopted file or
  ///          has huge pages of the system's pool.
  [[nodiscard]] status offer(const arena_place& place, std::uint64_t length);
  /// Tells the peer which announced arenas are gone.
  void forget_freed();
  /// Requests a move from the peer. While the peer has other moves to do, the request may wait for
  /// the next one. `done` runs once, also when the link closes. Returns true if the request was not
  /// sent yet; `send_held` must follow soon.
  /// Errors:  `busy`.
  bool ask(move request, pending_move pending);
  void on_answers(answers all);
  /// Closes the channel to a peer that did not answer in time.
  void expire(time_point now);
  /// Fails the moves in flight. Returns the holds of the memory that the peer may still be
  /// touching.
  std::vector<std::shared_ptr<void>> close(const status& why);

  // For the peer's arenas and our regions:

  // Arenas that cannot be mapped are remembered, and so are arenas of a peer that may not cause us
  // page faults. Moves that name them are answered `unsupported`.

  [[nodiscard]] status map(const announce& what, int fd);
  [[nodiscard]] status map_file(const announce_file& what, net::unique_fd fd);
  [[nodiscard]] status take_grant(const grant& what);
  void unmap(std::uint64_t arena);
  /// Returns the mappings that the peer no longer shares. Their last user unmaps them, which takes
  /// long, so it must not be the I/O loop.
  std::vector<std::shared_ptr<void>> take_unmapped();
  /// Returns the memory of one op.
  /// Errors:  `permission_denied` for a range outside an announced arena, or not granted;
  ///          `unsupported`.
  result<reached_memory> resolve(const move_op& op) const;
  const std::shared_ptr<std::atomic<bool>>& abandoned() const noexcept { return abandoned_; }
  /// Counts a move that begins. `ended` must follow, at once after an error.
  /// Errors:  `busy`.
  [[nodiscard]] status began(const move_weight& what);
  /// Tells the peer how a move ended. While several short moves run, the answer may wait for the
  /// next one. Returns true if it was not sent yet; `send_held` must follow soon.
  bool ended(moved outcome, const move_weight& what);
  /// Sends the requests and the answers that waited.
  void send_held();

private:
  template <class Message>
  [[nodiscard]] status send(message_kind kind, const Message& m, std::span<const int> fds = {});

  // An arena of ours as it was announced.
  struct announced {
    std::weak_ptr<arena> what;
    std::set<std::uint64_t> granules; // granules that were granted
  };
  // An arena or a file of the peer. Both are null if it was refused.
  struct mapping {
    std::shared_ptr<mapped_arena> arena;
    std::shared_ptr<mapped_file> file;
  };

  void on_moved(moved answer);
  bool ask_later() const;
  void ask_now(asks due);
  void tell(const answers& due);
  std::optional<pending_move> take(std::uint64_t number);
  bool trusted_with_faults() const noexcept;
  bool gets(const arena& a) const noexcept;
  status announce_locked(const std::shared_ptr<arena>& a);
  status grant_locked(const arena_place& place, std::uint64_t length);
  status admits(std::uint64_t arena) const;
  void drop_locked(mapping m);

  std::shared_ptr<net::channel> channel_;
  const std::uint64_t granule_bytes_;
  const shm_options options_;
  std::shared_ptr<std::atomic<bool>> abandoned_ = std::make_shared<std::atomic<bool>>(false);
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::uint64_t next_ = 1;
  std::unordered_map<std::uint64_t, pending_move> pending_;
  std::uint64_t pending_bytes_ = 0;
  asks asks_held_;   // pending, but not sent yet
  time_point heard_; // when the last answer came, or the request before the first one
  std::map<std::uint64_t, announced> announced_;
  std::map<std::uint64_t, mapping> mapped_;
  std::vector<std::shared_ptr<void>> unmapped_;

  std::mutex answers_mutex_; // guards what follows
  answers answers_held_;
  std::uint64_t moves_ = 0; // the peer's moves in flight
  move_weight under_way_;
};

} // namespace millrace::transport::shm
