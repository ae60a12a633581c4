// The options of reads of working sets on other hosts: the section `reading` of the configuration
// sets them. Used by clients.
#pragma once

#include <millrace/config/keys.hpp>

#include <cstdint>

namespace millrace::actors {

struct read_options {
  /// Bytes in a second that all reading processes of the host together may get; 0: as measured.
  std::uint64_t bandwidth_bytes_per_s = 0;
  std::uint32_t processes = 1; // that share the bandwidth
  std::uint32_t stages = 4;    // into which the bytes in flight are divided
  std::uint64_t inflight_bytes_min = 512u << 10;
  std::uint64_t inflight_bytes_max = 16u << 20;
  /// Memory through which reads into unregistered memory pass.
  std::uint64_t staging_bytes = 32u << 20;
  /// After which a data server that was lost is tried again, while files stand for it.
  std::uint64_t retry_ms = 10'000;
};

} // namespace millrace::actors

namespace millrace::config {
template <>
key_table<actors::read_options> keys_of();
}
