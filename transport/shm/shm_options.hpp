// The options of the shm driver: the section `shm` of the configuration sets them.
#pragma once

#include <millrace/config/keys.hpp>

#include <cstdint>

namespace millrace::transport {

struct shm_options {
  /// Moves asked of each peer at a time before it is busy. A transfer is one, of many pieces several.
  std::uint32_t transfers_max = 65'536;
  /// Memory for the lists of pieces and the digests of one peer's moves that wait or run; more are busy.
  std::uint64_t backlog_bytes_max = 256u << 20;
  /// Arenas and files of one peer that are mapped; more end its channel.
  std::uint32_t mapped_max = 4096;
  /// A short move, or its end, waits no longer than this for others that go in the same message.
  std::uint32_t batch_delay_ms = 1;
  /// Time without any answer, while some are due, after which a peer counts as lost.
  std::uint32_t answer_timeout_ms = 600'000;
};

} // namespace millrace::transport

namespace millrace::config {
template <>
key_table<transport::shm_options> keys_of();
}
