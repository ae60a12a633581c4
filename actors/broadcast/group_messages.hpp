// The messages about groups: join, hear of the end of an epoch, go on with those that are left,
// leave. Sent by members; they hold descriptors only.
#pragma once

#include <millrace/actors/service.hpp>
#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/group_rank.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::actors {

/// Joins a group. The answer waits until all of its members have joined, or for `patience_ms`. To
/// one that has begun already, it waits until the members go on together.
struct join_group_request {
  std::string name;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;        // members of the whole group
  std::string who;               // how errors of others call this member
  std::uint32_t patience_ms = 0; // 0: the default of the node's requests
  std::uint32_t timeout_ms = 0;  // how long the client waits; it does not travel
  /// Chosen by the asker, at random: by it `leave_group_request` names the lease of an answer that
  /// came too late.
  region_key mark = {};
  asker from = {};
};
MILLRACE_INSPECT(join_group_request, x.name, x.rank, x.size, x.who, x.patience_ms, x.mark)

/// An epoch of a group as one member has it: its members do not change.
struct group_epoch {
  std::uint64_t lease = 0;
  std::uint64_t epoch = 0;         // 1 is the first one
  std::vector<group_rank> members; // by rank
  std::uint64_t chunk_bytes = 0;
  std::uint32_t chunks = 0;
  bulk_handle ring; // no memory if the member is alone

  friend bool operator==(const group_epoch&, const group_epoch&) = default;
};
MILLRACE_INSPECT(group_epoch, x.lease, x.epoch, x.members, x.chunk_bytes, x.chunks, x.ring)

/// Goes on in a new epoch. The answer waits until all members that are left have asked for it, or
/// for `patience_ms`. Those that wait to join are in it.
struct renew_group_request {
  std::uint64_t lease = 0;
  std::uint64_t epoch = 0; // the asker's last one
  std::uint32_t patience_ms = 0;
  std::uint32_t timeout_ms = 0; // as above
  asker from = {};
};
MILLRACE_INSPECT(renew_group_request, x.lease, x.epoch, x.patience_ms)

/// Waits until an epoch is over, for at most `wait_ms`.
struct group_news_request {
  std::uint64_t lease = 0;
  std::uint64_t epoch = 0;
  std::uint32_t wait_ms = 0;
  std::uint32_t timeout_ms = 0; // as above
  asker from = {};
};
MILLRACE_INSPECT(group_news_request, x.lease, x.epoch, x.wait_ms)

struct group_news {
  bool is_over = false;
  std::uint8_t code = 0; // an `errc`
  std::string why;

  friend bool operator==(const group_news&, const group_news&) = default;
};
MILLRACE_INSPECT(group_news, x.is_over, x.code, x.why)

struct leave_group_request {
  std::uint64_t lease = 0; // 0: that of `mark`
  region_key mark = {};
  std::uint32_t timeout_ms = 0; // as above
  asker from = {};
};
MILLRACE_INSPECT(leave_group_request, x.lease, x.mark)

/// The service of a node's group keeper.
struct group_service
  : service<
      "groups", 160,
      // Errors: invalid_argument (rank, size); already_exists when a process has the rank;
      // permission_denied for a group of another user; busy and no_space for the ring;
      // deadline_exceeded naming who is missing.
      method<join_group_request, group_epoch>,
      // Errors: not_found for a lease that the asker does not have; invalid_argument for another
      // epoch; busy for a second one; deadline_exceeded as above.
      method<renew_group_request, group_epoch>,
      // Errors: not_found; busy.
      method<group_news_request, group_news>,
      // Errors: not_found.
      method<leave_group_request, done_reply>> {};

} // namespace millrace::actors
