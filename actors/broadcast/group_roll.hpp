// Who is in a group, who waits for its next epoch, and when that may begin.
// Pure: knows no actor and no clock. Used by the group keeper.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace millrace::actors {

/// One process in a group.
struct enrolled_member {
  std::uint32_t rank = 0;
  std::uint64_t lease = 0; // names the process here
  std::string who;         // for errors

  friend bool operator==(const enrolled_member&, const enrolled_member&) = default;
};

/// The members of one group, in epochs. Within an epoch they do not change.
///
/// The first epoch begins when all ranks have come. It is over for everyone as soon as one member
/// has gone. The next one begins when all members that are left ask for it, and has those that wait
/// to join as well. So members agree on the point from which on another one takes part.
class group_roll {
public:
  /// `size`: the number of ranks.
  group_roll(std::string name, std::uint32_t size) : name_(std::move(name)), size_(size) {}

  /// Enters a process that waits for the next epoch.
  /// Errors:  `invalid_argument` for another size, and for a rank that the group does not have;
  ///          `already_exists` naming the process that has the rank.
  status join(const enrolled_member& one, std::uint32_t size);
  /// A member waits for the epoch after `epoch`.
  /// Errors:  `not_found` for a lease without a member; `invalid_argument` if `epoch` is not its
  ///          last one; `busy` if it waits already.
  status renew(std::uint64_t lease, std::uint64_t epoch);
  /// Takes back what waits: a process that has not joined yet is forgotten.
  void withdraw(std::uint64_t lease);
  /// A process has gone. An epoch in which it was is over, with this error.
  void lose(std::uint64_t lease, const std::string& why, errc code = errc::peer_lost);

  /// Returns true if the next epoch may begin: its members are all that wait.
  bool may_begin() const;
  std::vector<enrolled_member> waiting() const;
  /// Begins the epoch of those that wait.
  void begin();

  const std::string& name() const noexcept { return name_; }
  /// Returns the number of the last epoch that began; 0: none has.
  std::uint64_t epoch() const noexcept { return epoch_; }
  /// Returns why the epoch is over; ok: it runs, or none has begun.
  const status& over() const noexcept { return over_; }
  /// Returns true if a process is in the last epoch that began, and has not gone.
  bool has(std::uint64_t lease) const { return find(members_, lease) != members_.end(); }
  bool is_empty() const noexcept { return members_.empty() && waiting_.empty(); }
  /// Says who keeps the next epoch from its beginning: "ranks 1, 3 of 4 have not joined".
  std::string missing() const;

private:
  using by_rank = std::map<std::uint32_t, enrolled_member>;

  bool was_begun() const noexcept { return !members_.empty(); }
  static by_rank::const_iterator find(const by_rank& among, std::uint64_t lease);

  const std::string name_;
  const std::uint32_t size_;
  std::uint64_t epoch_ = 0;
  status over_;
  by_rank members_; // of the last epoch, those that are left
  by_rank waiting_; // for the next one: members, and others that join
};

} // namespace millrace::actors
