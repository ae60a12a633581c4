// What both sides of a link need: sending, whom they trust, and when messages wait for each other.
// Used by `asking_side` and `lending_side`.
#pragma once

#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/shm/messages.hpp>

#include <unistd.h>

#include <algorithm>

namespace millrace::transport::shm {

/// Whether the peer may share memory in which it can cause page faults of ours, and we of its.
///
/// A process with the descriptor of a file can read and change all of it. A process that maps a file gets a signal
/// when another one truncates it, and pages of the system's huge page pool can be taken away likewise. Processes of one
/// user can do worse to each other anyway.
inline bool trusted_with_faults(const net::peer_info& peer) noexcept {
  return peer.uid == geteuid() || peer.uid == 0;
}

// Every message wakes a thread of the peer, which costs as much as copying some 100 KiB. So questions and answers wait
// for others, while the moves under way have on average no more bytes than this.
inline constexpr std::uint64_t bytes_while_held_max = 4u << 20;

/// How many messages may wait. Never more than a quarter of what is under way, so that the other side has work.
constexpr std::size_t held_at_most(std::size_t under_way) {
  constexpr std::size_t held_max = 16;
  return std::min(held_max, under_way / 4);
}

} // namespace millrace::transport::shm
