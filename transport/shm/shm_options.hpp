// The options of the shm driver: the section `shm` of the configuration sets them.
#pragma once

#include <millrace/config/keys.hpp>

#include <cstdint>

namespace millrace::transport {

struct shm_options {
  /// Moves that each peer is asked for at a time; more are answered `busy`. A transfer is one move,
  /// or several if it has many ops.
  std::uint32_t transfers_max = 65'536;
  /// Memory for the ops and the digests of one peer's moves that wait or run; more moves are
  /// answered `busy`.
  std::uint64_t backlog_bytes_max = 256u << 20;
  /// Mapped arenas, files, and separate parts of files of all peers, which processes share; more
  /// end the peer's channel. Each takes at most two of the 65,530 mappings that Linux lets a
  /// process have.
  std::uint32_t mapped_max = 16'384;
  /// A short move, or its answer, waits at most this long for others that share its message.
  std::uint32_t batch_delay_ms = 1;
  /// A peer that owes answers and gives none for this long counts as lost.
  std::uint32_t answer_timeout_ms = 600'000;
};

} // namespace millrace::transport

namespace millrace::config {
template <>
key_table<transport::shm_options> keys_of();
}
