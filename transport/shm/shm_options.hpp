// Every bound of the shm driver. The configuration's `shm` section sets them.
#pragma once

#include <millrace/core/status.hpp>

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

/// Errors: `invalid_argument` naming the option and its bounds.
[[nodiscard]] status check(const shm_options& options);

} // namespace millrace::transport
