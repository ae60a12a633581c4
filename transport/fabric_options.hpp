// The options of the fabric itself: the section `transport` of the configuration sets them.
#pragma once

#include <millrace/config/option_set.hpp>
#include <millrace/transport/copy/copy_job.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::transport {

/// Returns the drivers of this build, best first.
std::vector<std::string> driver_names();

struct fabric_options {
  /// The drivers to try, in this order. A driver that this machine cannot have is left out.
  std::vector<std::string> prefer = driver_names();
  /// The user asked for these drivers: warn about one that is left out.
  bool prefer_is_explicit = false;
  /// Drivers may accept connections at addresses of their own. False for clients, which share
  /// their configuration with nodes.
  bool listens = true;
  /// After a driver failed with a peer that another driver reached, it is not the first choice for
  /// that peer for this long.
  std::uint32_t retry_after_ms = 10'000;
  std::uint32_t movers = 0;         // 0: one per core, at most 8
  yielding yields;                  // how they yield to the program
  std::uint32_t device_threads = 2; // threads that wait for copies by devices; made at first use
  copy_limits limits;
  /// Payloads up to this size are no transfers: they travel inside a message.
  std::uint32_t eager_bytes_max = 4096;
  /// Peers map adopted files in granules of this size.
  std::uint64_t granule_bytes = 64u << 20;
  /// The options of the drivers: `drivers.edit<DRIVER_options>()`.
  config::option_set drivers;
};

} // namespace millrace::transport

namespace millrace::config {
template <>
key_table<transport::fabric_options> keys_of();
}
