// One shm driver's view of one peer: what was announced either way, and which moves are under way.
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

/// A move asked of the peer.
struct pending_move {
  completion<copied> done;
  std::uint64_t bytes = 0;   // that it copies
  std::uint64_t digests = 0; // how many the answer must bring
  std::shared_ptr<void> hold;
};

/// Memory of this process that a transfer of the peer touches.
struct reached_memory {
  std::byte* data = nullptr;
  std::shared_ptr<mapped_arena> arena; // or
  std::shared_ptr<mapped_file> file;

  /// Where the mapping begins.
  std::byte* begin() const noexcept { return arena ? arena->data() : file->data(); }
};

/// What a move of the peer takes while it is under way.
struct move_weight {
  std::uint64_t bytes = 0;        // that it copies
  std::uint64_t memory_bytes = 0; // of ours, for its pieces and its answer
};
move_weight weigh(const move& m);

/// Threads: any; completions run without the lock.
class peer_link {
public:
  peer_link(
    std::shared_ptr<net::channel> c, std::uint64_t granule_bytes, const shm_options& options)
    : channel_(std::move(c)), granule_bytes_(granule_bytes), options_(options) {}

  const net::peer_info& peer() const noexcept { return channel_->peer(); }
  bool is_open() const noexcept { return channel_->is_open(); }

  // -- our arenas, the peer's regions ---------------------------------------------------------

  /// Tells the peer of an arena once; nothing of one that it does not get, see `offer`.
  [[nodiscard]] status announce_arena(const std::shared_ptr<arena>& a);
  /// Lets the peer reach a part of an arena: announces it, and of an adopted file grants the granules.
  /// Errors: `unsupported` for an adopted file or huge pages of the system's pool, and a peer of another user.
  [[nodiscard]] status offer(const arena_place& place, std::uint64_t length);
  /// Tells the peer which announced arenas are gone.
  void forget_freed();
  /// Asks the peer to move, while it has others to do perhaps together with the next; `done` runs once, also when the
  /// link closes. True if it was not asked yet: `send_held` follows soon. Errors: `busy`.
  bool ask(move request, pending_move pending);
  void on_answers(answers all);
  /// Closes the channel to a peer that owes answers and gave none in time.
  void expire(time_point now);
  /// Fails what is under way. Returns what the peer may still be touching.
  std::vector<std::shared_ptr<void>> close(const status& why);

  // -- the peer's arenas, our regions ---------------------------------------------------------

  // What cannot be mapped, or whose owner we do not trust with our page faults, is remembered as such: moves that name
  // it are answered `unsupported`.

  [[nodiscard]] status map(const announce& what, int fd);
  [[nodiscard]] status map_file(const announce_file& what, net::unique_fd fd);
  [[nodiscard]] status take_grant(const grant& what);
  void unmap(std::uint64_t arena);
  /// What the peer does not share any more. The last user of a mapping pays for unmapping it, which takes long: not
  /// on the loop.
  std::vector<std::shared_ptr<void>> take_unmapped();
  /// Errors: `permission_denied` for a range outside an announced arena, or not granted; `unsupported`.
  result<reached_memory> resolve(const move_op& op) const;
  const std::shared_ptr<std::atomic<bool>>& abandoned() const noexcept { return abandoned_; }
  /// A move begins. `ended` follows, at once after an error: `busy`.
  [[nodiscard]] status began(const move_weight& what);
  /// Tells the peer how a move ended; while several short ones are under way, together with the next. True if it was
  /// not told yet: `send_held` follows soon.
  bool ended(moved outcome, const move_weight& what);
  /// Sends the questions and the answers that waited for others.
  void send_held();

private:
  template <class Message>
  [[nodiscard]] status send(message_kind kind, const Message& m, std::span<const int> fds = {});

  // What an announced arena of ours was told as.
  struct announced {
    std::weak_ptr<arena> what;
    std::set<std::uint64_t> granules; // granted
  };
  // An arena or a file of the peer; neither if it was refused.
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
  asks asks_held_;   // pending, but not asked yet
  time_point heard_; // an answer, or the question before any
  std::map<std::uint64_t, announced> announced_;
  std::map<std::uint64_t, mapping> mapped_;
  std::vector<std::shared_ptr<void>> unmapped_;

  std::mutex answers_mutex_; // guards what follows
  answers answers_held_;
  std::uint64_t moves_ = 0; // of the peer, under way
  move_weight under_way_;
};

} // namespace millrace::transport::shm
