// Which memory is near which device. Asked by `device` and by `peer_link` when it chooses a rail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace millrace::transport::verbs {

/// A bit for each of the first 64 NUMA nodes; 0: not known, as near as any.
std::uint64_t node_mask_of_device(const std::string& device);
std::uint64_t node_mask_of_memory(const std::byte* data, std::uint64_t size_bytes);
/// Of what is plugged in there, "0000:3b:00.0".
std::uint64_t node_mask_of_pci(const std::string& address);

/// From a device to memory, nearest first. The values travel on the wire: append, never renumber.
enum class distance : std::uint8_t {
  same_switch, // behind one PCI bridge
  same_root,   // behind one root complex
  same_node,   // of NUMA, or not known
  elsewhere,
};

/// What is not known is as near as any memory that is not a GPU's.
constexpr distance distance_between(std::uint64_t nodes, std::uint64_t others) noexcept {
  auto near = nodes == 0 || others == 0 || (nodes & others) != 0;
  return near ? distance::same_node : distance::elsewhere;
}

/// From a device to what is plugged in at an address; none where they share no root complex, or the topology knows one
/// of them not. `topology_xml`: of another machine, as hwloc writes it; empty: of this one.
std::optional<distance> distance_over_pci(
  const std::string& device, const std::string& pci_address, const std::string& topology_xml = {});

/// Keeps the calling thread on the processors of these nodes, as far as it may run there.
void stay_near(std::uint64_t node_mask);

/// The nodes in words, "0,1"; empty when not known.
std::string nodes_near_device(const std::string& device);

} // namespace millrace::transport::verbs
