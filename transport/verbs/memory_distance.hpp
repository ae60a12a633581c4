// Which memory is near which device. Asked by `device` and by `peer_link` when it chooses a rail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace millrace::transport::verbs {

/// A bit for each of the first 64 NUMA nodes; 0: not known, as near as any.
std::uint64_t node_mask_of_device(const std::string& device);
std::uint64_t node_mask_of_memory(const std::byte* data, std::uint64_t size_bytes);

/// The nodes in words, "0,1"; empty when not known.
std::string nodes_near_device(const std::string& device);

} // namespace millrace::transport::verbs
