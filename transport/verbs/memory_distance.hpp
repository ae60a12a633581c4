// Which memory is near which device. Asked by `device` and by `peer_link` when it chooses a rail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace millrace::transport::verbs {

/// A bit for each of the first 64 NUMA nodes; 0: not known, as near as any.
std::uint64_t node_mask_of_device(const std::string& device);
std::uint64_t node_mask_of_memory(const std::byte* data, std::uint64_t size_bytes);
/// Of what is plugged in there, "0000:3b:00.0".
std::uint64_t node_mask_of_pci(const std::string& address);

/// What is not known is as near as anything.
constexpr bool are_near(std::uint64_t nodes, std::uint64_t others) noexcept {
  return nodes == 0 || others == 0 || (nodes & others) != 0;
}

/// Keeps the calling thread on the processors of these nodes, as far as it may run there.
void stay_near(std::uint64_t node_mask);

/// The nodes in words, "0,1"; empty when not known.
std::string nodes_near_device(const std::string& device);

} // namespace millrace::transport::verbs
