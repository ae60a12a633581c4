// The options of a node's data server: the section `data` of the configuration sets them.
#pragma once

#include <millrace/config/keys.hpp>
#include <millrace/storage/samples/sample_pool.hpp>

#include <cstdint>

namespace millrace::actors {

struct data_options {
  std::uint64_t capacity_bytes = 0; // 0: the node has no data server
  std::uint64_t region_bytes = 512u << 20;
  std::uint32_t sets_max = 4096;
  std::uint64_t quota_bytes = 0; // of the sets of one user, in regions; 0: no quota
  storage::samples::room_policy when_full = storage::samples::room_policy::refuse;
  /// Sets that readers have open and preloads that are under way, which processes share.
  std::uint32_t leases_max = 65'536;
};

/// Returns the number of regions.
inline std::uint64_t region_count(const data_options& o) noexcept {
  return o.capacity_bytes / o.region_bytes;
}

} // namespace millrace::actors

namespace millrace::config {
template <>
key_table<actors::data_options> keys_of();
}
