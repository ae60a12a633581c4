// Computes which memory and which processors are near which devices.
// Used by copy jobs and movers, by verbs when it chooses a rail, by loaders, and by the doctor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace::transport {

/// Returns a bit for each of the first 64 NUMA nodes. 0 means unknown, which counts as near.
std::uint64_t node_mask_of_device(const std::string& device);
std::uint64_t node_mask_of_memory(const std::byte* data, std::uint64_t size_bytes);
/// Returns the nodes of the device at a PCI address, "0000:3b:00.0".
std::uint64_t node_mask_of_pci(const std::string& address);

/// The distance from a device to memory, nearest first. These values travel on the wire: append new
/// ones, never renumber.
enum class distance : std::uint8_t {
  same_switch, // behind one PCI bridge
  same_root,   // behind one root complex
  same_node,   // the same NUMA node, or unknown
  elsewhere,
};

/// Returns the distance by NUMA nodes. Unknown counts as near.
constexpr distance distance_between(std::uint64_t nodes, std::uint64_t others) noexcept {
  auto near = nodes == 0 || others == 0 || (nodes & others) != 0;
  return near ? distance::same_node : distance::elsewhere;
}

/// Returns the distance from a device to the one at a PCI address; nothing if they share no root
/// complex, or the topology lacks one of them. `topology_xml` is another machine's topology as
/// hwloc writes it; empty: this machine's.
std::optional<distance> distance_over_pci(
  const std::string& device, const std::string& pci_address, const std::string& topology_xml = {});

/// Numbers of processors, as the system counts them, in rising order.
using processor_list = std::vector<std::uint32_t>;

/// Returns the processors nearest to a device, or to the one at a PCI address; none if the topology
/// lacks it. `topology_xml`: as above.
processor_list processors_near_device(
  const std::string& device, const std::string& topology_xml = {});
processor_list processors_near_pci(
  const std::string& pci_address, const std::string& topology_xml = {});
/// Returns those near any of some devices.
processor_list processors_near_devices(
  const std::vector<std::string>& devices, const std::string& topology_xml = {});
/// Returns the processors as text, "0-3,8"; empty for none.
std::string text_of(const processor_list& processors);

/// Keeps the calling thread on these processors, among those on which it could run before its first
/// call of one of these functions; until the next call, `stay_near` does nothing then. Without
/// processors, or if it may run on none of them, the thread may run where it could before.
void stay_on(const processor_list& processors);
/// Keeps the calling thread on those processors of these nodes on which it could run before its
/// first call. Does nothing if there are none, or the mask is 0.
void stay_near(std::uint64_t node_mask);
/// The same for the node of this memory. Costs nothing on a machine with one node.
void stay_near_memory(const std::byte* data);

/// Returns the nodes as text, "0,1"; empty when unknown.
std::string nodes_near_device(const std::string& device);

} // namespace millrace::transport
