// Helpers for both sides of a link: how to send, which peer to trust, when to hold messages back.
// Used by `asking_side` and `lending_side`.
#pragma once

#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/shm/messages.hpp>

#include <unistd.h>

#include <algorithm>

namespace millrace::transport::shm {

/// Returns true if the peer may share memory in which it can cause page faults of ours, and we can
/// cause its page faults.
///
/// A process with the descriptor of a file can read and change all of it. A process that maps a
/// file gets a signal when another process truncates it, and pages of the system's huge page pool
/// can be taken away likewise. Processes of one user can do worse to each other anyway.
inline bool trusted_with_faults(const net::peer_info& peer) noexcept {
  return peer.uid == geteuid() || peer.uid == 0;
}

// Every message wakes a thread of the peer, which costs as much as copying some 100 KiB. So
// questions and answers wait for others while the moves under way have on average at most this many
// bytes.
inline constexpr std::uint64_t bytes_while_held_max = 4u << 20;

/// Returns how many messages may wait. This is at most a quarter of those under way, so that the
/// other side has work.
constexpr std::size_t held_at_most(std::size_t under_way) {
  constexpr std::size_t held_max = 16;
  return std::min(held_max, under_way / 4);
}

} // namespace millrace::transport::shm
