// Serves one peer that asks this process to copy: the peer's arenas, and the answers it gets.
// Part of `peer_link`.
#pragma once

#include <millrace/core/fair_shares.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/memory/arena.hpp>
#include <millrace/transport/memory/mapped_file.hpp>
#include <millrace/transport/memory/mapped_region.hpp>
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
  std::shared_ptr<mapped_arena> arena; // or `file`
  std::shared_ptr<mapped_file> file;

  /// Returns where the mapping begins.
  std::byte* begin() const noexcept { return arena ? arena->data() : file->data(); }
};

/// The cost of one of the peer's moves while it is under way.
struct move_weight {
  std::uint64_t bytes = 0;        // bytes to copy
  std::uint64_t memory_bytes = 0; // memory of this process for its ops and its answer
};
move_weight weigh(const move& m);

/// Maps the peer's memory within its bounds, and sends the answers.
/// Threads: any.
class lending_side {
public:
  /// `mappings`: those of all peers, see `shm_options::mapped_max`.
  lending_side(
    std::shared_ptr<net::channel> c, const shm_options& options,
    std::shared_ptr<lent_places> mappings);

  // Memory that cannot be mapped, or whose owner this process does not trust with page faults, is
  // remembered as refused. Moves that name it are answered `unsupported`.

  [[nodiscard]] status map(const announce& what, int fd);
  [[nodiscard]] status map_file(const announce_file& what, net::unique_fd fd);
  [[nodiscard]] status take_grant(const grant& what);
  void unmap(std::uint64_t arena);
  /// Returns the mappings that the peer does not share any more. The last user of a mapping unmaps
  /// it, which takes long, so the caller must not drop the mappings on the loop.
  std::vector<std::shared_ptr<void>> take_unmapped();
  /// Finds the memory of an op.
  /// Errors:  `permission_denied` for a range outside an announced arena, a part that was not
  ///          granted, or an arena that is not for transfers; `unsupported` for refused memory.
  result<reached_memory> resolve(const move_op& op) const;
  /// Finds an arena that the peer has announced to be mapped with this right.
  /// Errors:  `protocol_error` if there is none; `unsupported` for refused memory.
  result<std::shared_ptr<mapped_arena>> find_mapped(std::uint64_t arena, access_mode how) const;

  /// Counts a move that begins. `ended` must follow, after an error at once.
  /// Errors:  `busy`.
  [[nodiscard]] status began(const move_weight& what);
  /// Tells the peer how a move ended. While several short moves are under way, the answer may be
  /// held until the next one; then this returns true, and `send_held` must follow soon.
  bool ended(moved outcome, const move_weight& what);
  void send_held();

  void close();
  /// Set by `close`: copies for the peer stop.
  const std::shared_ptr<std::atomic<bool>>& abandoned() const noexcept { return abandoned_; }

private:
  using places = std::vector<std::shared_ptr<void>>;

  // An arena or a file of the peer; neither if it was refused.
  struct mapping {
    std::shared_ptr<void> place; // null only if it was refused for lack of one
    arena_sharing sharing = arena_sharing::transfers;
    std::shared_ptr<mapped_arena> arena = nullptr;
    std::shared_ptr<mapped_file> file = nullptr;
    std::shared_ptr<places> parts = nullptr; // the file's: one place for each run
  };

  result<mapping> admit(
    std::uint64_t arena, arena_sharing sharing = arena_sharing::transfers) const;
  status count_parts(mapping& m) const;
  void drop_locked(mapping m);
  void tell(const answers& due);

  const std::shared_ptr<net::channel> channel_;
  const shm_options options_;
  const std::shared_ptr<lent_places> mappings_;
  const party who_;
  const std::shared_ptr<std::atomic<bool>> abandoned_ = std::make_shared<std::atomic<bool>>(false);
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::map<std::uint64_t, mapping> mapped_;
  std::vector<std::shared_ptr<void>> unmapped_;

  std::mutex answers_mutex_; // guards the members below
  answers answers_held_;
  std::uint64_t moves_ = 0; // the peer's moves under way
  move_weight under_way_;
};

} // namespace millrace::transport::shm
