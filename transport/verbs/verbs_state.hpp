// The devices that the verbs driver found and the state of its rails, as data.
// Used by `doctor` and `status`.
#pragma once

#include <millrace/transport/verbs/verbs_options.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::transport {

/// One port of one device.
struct verbs_port {
  std::string device;
  std::uint32_t port = 0;
  bool active = false;
  std::string link_layer; // "ethernet" or "infiniband"
  std::uint32_t mtu = 0;  // bytes; the active one
  std::string gid;        // the chosen one; empty: none
  std::uint32_t gid_index = 0;
  std::string gid_rule;      // why this one
  std::string numa;          // the nodes near it, "0" or "0,1"; empty: unknown
  std::uint32_t sge_max = 0; // limits of the device
  std::uint32_t reads_max = 0;
  std::uint64_t message_bytes_max = 0;
  bool windows = false; // memory windows of type 2
  bool dma_buf = false; // it can register memory of other devices
  std::string remark;   // why it is not used; empty if it is
};

/// The devices of this machine as a driver with these options sees them.
struct verbs_state {
  std::vector<verbs_port> ports;
  std::string remark;          // why there is no device; empty if there is one
  std::string locked_memory;   // the limit for this process: "unlimited" or bytes
  bool unmaps_watched = false; // the kernel reports unmapped memory
};

/// Examines the devices without keeping them open. Blocks for some milliseconds.
verbs_state describe_verbs_devices(const verbs_options& options);

/// One rail to one peer.
struct verbs_rail_stats {
  std::string peer;
  std::string device;       // the device of this side
  std::string state;        // "up", "connecting" or "down"
  std::string connected_by; // "channel" or "rdma_cm"
  std::uint64_t bytes = 0;
  std::uint64_t requests = 0;
  std::uint64_t completions = 0; // that the device reported for them
  std::uint64_t retried = 0;     // requests repeated, on this rail or another one
  std::uint64_t failures = 0;    // how often it broke
  std::uint64_t rate_bytes_per_s = 0;
  std::uint32_t depth = 0; // requests it may have in flight now
  std::string last_error;
};

struct verbs_stats {
  std::vector<verbs_rail_stats> rails;
  std::uint64_t registrations = 0; // in the cache now
  std::uint64_t registered_bytes = 0;
  std::uint64_t grants = 0; // regions of ours for which peers have keys
  std::uint64_t windows = 0;
  // Registrations of GPU memory that this process has made, by method.
  std::uint64_t by_dma_buf = 0;
  std::uint64_t by_peer_memory = 0;
};

} // namespace millrace::transport
