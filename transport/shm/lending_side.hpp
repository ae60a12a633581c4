// Serves one peer that asks this process to copy: the peer's arenas, and the answers it gets.
// Part of `peer_link`.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/memory/arena.hpp>
#include <millrace/transport/memory/mapped_file.hpp>
#include <millrace/transport/shm/messages.hpp>
#include <millrace/transport/shm/shm_options.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace millrace::transport::shm {

/// Memory of the peer that a move touches, as this process has mapped it.
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

/// Threads: any.
class lending_side {
public:
  lending_side(std::shared_ptr<net::channel> c, const shm_options& options)
    : channel_(std::move(c)), options_(options) {}

  // Memory that cannot be mapped, or whose owner is not trusted with our page faults, is remembered as such: moves that
  // name it are answered `unsupported`.

  [[nodiscard]] status map(const announce& what, int fd);
  [[nodiscard]] status map_file(const announce_file& what, net::unique_fd fd);
  [[nodiscard]] status take_grant(const grant& what);
  void unmap(std::uint64_t arena);
  /// What the peer does not share any more. The last user of a mapping pays for unmapping it, which takes long: not
  /// on the loop.
  std::vector<std::shared_ptr<void>> take_unmapped();
  /// Errors: `permission_denied` for a range outside an announced arena, or not granted; `unsupported`.
  result<reached_memory> resolve(const move_op& op) const;

  /// A move begins. `ended` follows, at once after an error: `busy`.
  [[nodiscard]] status began(const move_weight& what);
  /// Tells the peer how a move ended. While several short ones are under way, the answer may wait for the next one:
  /// true then, and `send_held` must follow soon.
  bool ended(moved outcome, const move_weight& what);
  void send_held();

  void close();
  /// Set by `close`: copying for the peer stops.
  const std::shared_ptr<std::atomic<bool>>& abandoned() const noexcept { return abandoned_; }

private:
  // An arena or a file of the peer; neither if it was refused.
  struct mapping {
    std::shared_ptr<mapped_arena> arena;
    std::shared_ptr<mapped_file> file;
  };

  status admits(std::uint64_t arena) const;
  void drop_locked(mapping m);
  void tell(const answers& due);

  const std::shared_ptr<net::channel> channel_;
  const shm_options options_;
  const std::shared_ptr<std::atomic<bool>> abandoned_ = std::make_shared<std::atomic<bool>>(false);
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::map<std::uint64_t, mapping> mapped_;
  std::vector<std::shared_ptr<void>> unmapped_;

  std::mutex answers_mutex_; // guards what follows
  answers answers_held_;
  std::uint64_t moves_ = 0; // of the peer, under way
  move_weight under_way_;
};

} // namespace millrace::transport::shm
