// One shm driver's view of one peer: what was announced either way, and which moves are under way.
#pragma once

#include <millrace/transport/arena.hpp>
#include <millrace/transport/channel.hpp>
#include <millrace/transport/driver.hpp>
#include <millrace/transport/shm/messages.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace millrace::transport::shm {

/// A move asked of the peer.
struct pending_move {
  completion<std::vector<std::uint64_t>> done;
  std::uint64_t digests = 0; // how many the answer must bring
  std::shared_ptr<void> hold;
};

/// Threads: any; completions run without the lock.
class peer_link {
public:
  explicit peer_link(std::shared_ptr<channel> c) : channel_(std::move(c)) {}

  const peer_info& peer() const noexcept { return channel_->peer(); }
  bool is_open() const noexcept { return channel_->is_open(); }

  // -- our arenas, the peer's regions ---------------------------------------------------------

  /// Tells the peer of an arena once.
  [[nodiscard]] status announce_arena(const std::shared_ptr<arena>& a);
  /// Tells the peer which announced arenas are gone.
  void forget_freed();
  /// Asks the peer to move; `done` runs once, also when the link closes.
  void ask(move request, pending_move pending);
  void on_moved(moved answer);
  /// Fails what is under way. Returns what the peer may still be touching.
  std::vector<std::shared_ptr<void>> close(const status& why);

  // -- the peer's arenas, our regions ---------------------------------------------------------

  result<std::shared_ptr<mapped_arena>> map(const announce& what, int fd);
  void unmap(std::uint64_t arena);
  /// Errors: `permission_denied` for a range outside an announced arena.
  result<std::byte*> resolve(const move_op& op, std::vector<std::shared_ptr<void>>& keep) const;
  const std::shared_ptr<std::atomic<bool>>& abandoned() const noexcept { return abandoned_; }

  template <class Message>
  [[nodiscard]] status send(message_kind kind, const Message& m, std::span<const int> fds = {});

private:
  std::optional<pending_move> take(std::uint64_t number);

  std::shared_ptr<channel> channel_;
  std::shared_ptr<std::atomic<bool>> abandoned_ = std::make_shared<std::atomic<bool>>(false);
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::uint64_t next_ = 1;
  std::unordered_map<std::uint64_t, pending_move> pending_;
  std::map<std::uint64_t, std::weak_ptr<arena>> announced_;
  std::map<std::uint64_t, std::shared_ptr<mapped_arena>> mapped_;
};

} // namespace millrace::transport::shm
