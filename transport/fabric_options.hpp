// The options of the fabric itself: the section `transport` of the configuration sets them.
#pragma once

#include <millrace/config/option_set.hpp>
#include <millrace/transport/copy/copy_job.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::transport {

/// The drivers of this build, best first.
std::vector<std::string> driver_names();

struct fabric_options {
  /// Tried in this order; a driver that this machine cannot have is left out.
  std::vector<std::string> prefer = driver_names();
  /// Somebody asked for these drivers: one that is left out is worth a warning.
  bool prefer_is_explicit = false;
  /// How long a driver that failed with a peer, while another reached it, is not its first choice.
  std::uint32_t retry_after_ms = 10'000;
  std::uint32_t movers = 0;         // 0: one a core, at most 8
  std::uint32_t device_threads = 2; // wait for copies of devices; none before there are any
  copy_limits limits;
  /// Payloads up to this size are no transfers: they are part of a message.
  std::uint32_t eager_bytes_max = 4096;
  /// Adopted files are mapped by peers in pieces of this size.
  std::uint64_t granule_bytes = 64u << 20;
  /// Of the drivers: `drivers.edit<shm_options>()`.
  config::option_set drivers;
};

} // namespace millrace::transport

namespace millrace::config {
template <>
key_table<transport::fabric_options> keys_of();
}
