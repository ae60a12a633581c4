// Groups of processes that broadcast tensors to each other. Programs get them from
// `client::join_group`; every call that waits returns a future.
#pragma once

#include <millrace/core/future.hpp>
#include <millrace/core/group_rank.hpp>
#include <millrace/core/status.hpp>
#include <millrace/core/tensor_view.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace millrace {

namespace runtime {
class group_membership;
}

struct group_options {
  std::uint32_t rank = 0; // of this process, from 0 on
  std::uint32_t size = 1; // processes in the whole group; all give the same
  /// The node that keeps the group, on the host of all members. Empty: the node to which the client
  /// was opened.
  std::string node = {};
  /// How errors call this member. Empty: its process number.
  std::string who = {};
  std::chrono::milliseconds timeout{0}; // of joining; 0: the client's request timeout
};

struct broadcast_options {
  std::uint32_t root = 0;               // the rank whose tensors the others get
  std::chrono::milliseconds timeout{0}; // 0: the client's request timeout
};

/// What a broadcast was, as one member saw it.
struct broadcast_receipt {
  std::uint64_t number = 0;      // of its epoch, from 0 on
  std::uint64_t size_bytes = 0;  // of all tensors
  std::uint64_t chunk_bytes = 0; // that pass at a time
  /// The time that the cost model expects of the whole broadcast.
  /// Source:  the broadcast paper, sections 3 and 8; see decision 041.
  double predicted_s = 0;
  double measured_s = 0; // from the call until this member's part was over
};

/// This process's membership in a group of one host.
///
/// All members call `broadcast` equally often and in the same order, as with collective operations
/// of MPI. None waits for ever: each broadcast has a deadline, and an error names the members that
/// did not come.
///
/// Members are agreed on for an *epoch*. When one goes (its process ends, its connection breaks, or
/// it leaves), the epoch is over for all: broadcasts under way, and later ones, fail with
/// `peer_lost` naming it. What a root had sent whole before is still received. When all others have
/// called `renew`, they go on in a new epoch without it. A process that joins again is in the epoch
/// that begins with the next `renew` of all.
///
/// Members share memory that each of them can write, so a group belongs to one user.
/// Copies share the membership. The last copy leaves the group; its broadcasts end with
/// `cancelled`.
/// Threads: any. Calls of several threads are broadcasts in the order of the calls.
/// Source:  the broadcast paper, section 3; the ring in shared memory is ours.
class broadcast_group {
public:
  explicit broadcast_group(std::shared_ptr<runtime::group_membership> of) : of_(std::move(of)) {}

  const std::string& name() const noexcept;
  std::uint32_t rank() const noexcept;
  /// Returns the number of the epoch, from 1 on; 0 in a forked child.
  std::uint64_t epoch() const;
  /// Returns the members of the epoch, by rank; none in a forked child.
  std::vector<group_rank> members() const;

  /// Gives the tensors of `root` to all other members, into their tensors. Those of all members
  /// have the same bytes in all; names and shapes are not compared. Tensors may be dense or
  /// strided, on the host. They belong to the broadcast until the future is ready.
  ///
  /// At the root the future is ready when its tensors may be changed; others may still be reading
  /// what has left it. Elsewhere it is ready when all bytes are in their tensors.
  ///
  /// A member whose broadcast has failed, or was cancelled, may go on: the next one is the next one
  /// of all. When the root fails, all fail.
  /// Errors:  `invalid_argument` for another size than the root's, for two roots, and for a root
  ///          that is no member; `deadline_exceeded` naming the ranks that did not come;
  ///          `peer_lost` naming the rank with which the epoch ended; `unavailable` when the node
  ///          that keeps the group is gone: join again; `unsupported` for memory of devices; `busy`
  ///          for more than 1,024 broadcasts that wait; `protocol_error` when a member wrote what
  ///          cannot be, which ends the epoch here.
  future<broadcast_receipt> broadcast(
    std::vector<tensor_view> tensors, const broadcast_options& options = {}) const;

  /// Begins a new epoch with all members that are left, and those that wait to join. All of them
  /// call it; until then the call waits. Broadcasts that are under way here fail with `cancelled`,
  /// and so do those that begin before it has ended. After an error the epoch goes on as it was.
  /// Errors:  `deadline_exceeded` naming who has not called it; `unavailable` when the node that
  ///          keeps the group is gone; `busy` for a second call at once.
  future<void> renew(std::chrono::milliseconds timeout = {}) const;

  /// Leaves the group: for the others the epoch is over. Later calls give `cancelled`.
  future<void> leave() const;

private:
  std::shared_ptr<runtime::group_membership> of_;
};

} // namespace millrace
