// The options of the verbs driver: the section `verbs` of the configuration sets them.
#pragma once

#include <millrace/config/keys.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace::transport {

/// How queue pairs find their partner: by messages of the channel, or by librdmacm after messages
/// of the channel have given the address and a token.
enum class verbs_connect : std::uint8_t { channel, rdma_cm };

struct verbs_options {
  /// The ports to use: "rxe0" (every active port of it) or "mlx5_0:1"; empty: every active port of
  /// every device.
  std::vector<std::string> devices;
  std::optional<std::uint32_t> gid_index;         // one for every port; absent: see `choose_gid`
  std::uint32_t mtu = 0;                          // bytes; 0: the smaller of the two ports' values
  verbs_connect connect = verbs_connect::channel; // `rdma_cm` if both sides want it
  /// The most threads for connecting, made when needed. A connection may wait there for the
  /// network, in one thread per peer.
  std::uint32_t setup_threads = 8;

  std::uint32_t queue_depth = 128;              // work requests in flight for each rail of a peer
  std::uint32_t sge_max = 30;                   // gather entries of one work request
  std::uint32_t inline_bytes_max = 220;         // smaller writes travel inside their work request
  std::uint64_t message_bytes_max = 1u << 20;   // longer requests are cut
  std::uint64_t inflight_bytes_max = 16u << 20; // each rail of a peer; at least one request
  // Bytes in flight over one port to all peers; at least one request per rail.
  std::uint64_t port_inflight_bytes_max = 32u << 20;
  std::uint32_t signal_interval = 16;        // one completion for this many requests
  std::uint64_t stripe_bytes_min = 4u << 20; // smaller transfers stay on one rail
  std::uint32_t poll_us = 50;                // how long it polls after an event before it sleeps
  std::uint32_t sleep_ms = 1000;             // the longest sleep
  bool bind_thread = true; // the completion thread runs on NUMA nodes of the devices

  std::uint32_t connect_timeout_ms = 5000; // a queue pair that is not up by then is given up
  // Rounded up to a value that devices know: 4.096 us times a power of two.
  std::uint32_t ack_timeout_ms = 67;
  std::uint32_t ack_retries = 6; // the device's tries; soft-RoCE takes 7 for "for ever"
  // A transfer without progress for this long fails; a rail, after half of it.
  std::uint32_t op_timeout_ms = 15'000;
  std::uint32_t op_retries = 3;           // how often a request is repeated after it broke a rail
  std::uint32_t probe_interval_ms = 1000; // how often a failed rail is tried again

  /// How often to retry registering staging memory that failed for lack of locked memory.
  std::uint32_t register_retry_ms = 10'000;
  std::uint32_t cache_entries_max = 4096; // registrations of memory outside arenas
  std::uint64_t cache_bytes_max = 0;      // all registrations; 0: half of the memory
  /// Devices keep peers inside a memory window. Absent: all but soft-RoCE, which checks only the
  /// registration below the window. There each window gets a registration of its own size.
  std::optional<bool> windows_checked;
  bool watch_unmaps = true; // by userfaultfd; without it, registrations end with their region
  // Regions of ours of which one peer may hold keys, and regions of one peer whose keys are kept.
  std::uint32_t grants_max = 4096;
  std::uint32_t windows_max = 65'536; // keys that one peer may hold
  /// Bytes of one peer's messages that wait to be handled; more end its channel.
  std::uint64_t backlog_bytes_max = 64u << 20;
};

} // namespace millrace::transport

namespace millrace::config {
template <>
key_table<transport::verbs_options> keys_of();
}
