// The machine's topology, read once by hwloc.
// Called when devices are opened, when memory is registered, and for each chunk of a copy.
#include <millrace/core/never_destroyed.hpp>
#include <millrace/transport/memory/memory_distance.hpp>

#include <fmt/core.h>
#include <hwloc.h>

#include <filesystem>
#include <memory>
#include <set>

namespace millrace::transport {

namespace {

struct topology_free {
  void operator()(hwloc_topology_t t) const noexcept { hwloc_topology_destroy(t); }
};
using topology_ptr = std::unique_ptr<hwloc_topology, topology_free>;

// `xml` empty: the topology of this machine.
topology_ptr load(const std::string& xml) {
  hwloc_topology_t t = nullptr;
  if (hwloc_topology_init(&t) != 0)
    return nullptr;
  topology_ptr out{t};
  hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (
    !xml.empty() &&
    hwloc_topology_set_xmlbuffer(t, xml.c_str(), static_cast<int>(xml.size() + 1)) != 0)
    return nullptr;
  return hwloc_topology_load(t) == 0 ? std::move(out) : nullptr;
}

hwloc_topology_t topology() {
  return never_destroyed([] { return load({}); }).get();
}

// Returns null if the topology lacks the device.
hwloc_obj_t find_device(hwloc_topology_t t, const std::string& device) {
  for (hwloc_obj_t o = nullptr; t && (o = hwloc_get_next_osdev(t, o)) != nullptr;)
    if (o->name && device == o->name)
      return o;
  return nullptr;
}

hwloc_obj_t find_pci(hwloc_topology_t t, const std::string& address) {
  return t && !address.empty() ? hwloc_get_pcidev_by_busidstring(t, address.c_str()) : nullptr;
}

bool is_above(hwloc_obj_t bridge, hwloc_obj_t o) {
  while (o && o != bridge)
    o = o->parent;
  return o != nullptr;
}

using bitmap_ptr = std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)>;
bitmap_ptr make_bitmap() { return {hwloc_bitmap_alloc(), hwloc_bitmap_free}; }

// Returns null if the system does not say.
bitmap_ptr processors_of_thread() {
  auto cpus = make_bitmap();
  if (!topology() || hwloc_get_cpubind(topology(), cpus.get(), HWLOC_CPUBIND_THREAD) != 0)
    cpus.reset();
  return cpus;
}

// Where the calling thread may run, and is kept.
struct thread_place {
  const bitmap_ptr allowed = processors_of_thread(); // before it was kept anywhere
  std::uint64_t near_nodes = 0;
  bool is_kept = false; // on processors, see `stay_on`

  // Returns false if the thread may run on none of them.
  bool go_to(hwloc_bitmap_t cpus) const {
    hwloc_bitmap_and(cpus, cpus, allowed.get());
    return !hwloc_bitmap_iszero(cpus) &&
      hwloc_set_cpubind(topology(), cpus, HWLOC_CPUBIND_THREAD) == 0;
  }
};

thread_place& here() {
  thread_local thread_place place;
  return place;
}

processor_list processors_above(hwloc_topology_t t, hwloc_obj_t o) {
  processor_list out;
  auto* near = o ? hwloc_get_non_io_ancestor_obj(t, o) : nullptr;
  if (!near || !near->cpuset)
    return out;
  for (int i = hwloc_bitmap_first(near->cpuset); i >= 0; i = hwloc_bitmap_next(near->cpuset, i))
    out.push_back(static_cast<std::uint32_t>(i));
  return out;
}

template <class Find>
processor_list processors_near(const std::string& name, const std::string& xml, Find find) {
  auto other = xml.empty() ? nullptr : load(xml);
  auto* t = xml.empty() ? topology() : other.get();
  return t ? processors_above(t, find(t, name)) : processor_list{};
}

std::uint64_t mask_of(hwloc_const_nodeset_t nodes) {
  return nodes ? hwloc_bitmap_to_ith_ulong(nodes, 0) : 0;
}

// Returns the nodes of the object to which an I/O object is attached.
std::uint64_t mask_above(hwloc_obj_t o) {
  auto* near = o ? hwloc_get_non_io_ancestor_obj(topology(), o) : nullptr;
  return near ? mask_of(near->nodeset) : 0;
}

} // namespace

std::uint64_t node_mask_of_device(const std::string& device) {
  return mask_above(find_device(topology(), device));
}

std::uint64_t node_mask_of_memory(const std::byte* data, std::uint64_t size_bytes) {
  if (!topology() || size_bytes == 0)
    return 0;
  auto nodes = make_bitmap();
  auto found =
    hwloc_get_area_memlocation(topology(), data, size_bytes, nodes.get(), HWLOC_MEMBIND_BYNODESET);
  return found == 0 ? mask_of(nodes.get()) : 0;
}

std::uint64_t node_mask_of_pci(const std::string& address) {
  return mask_above(find_pci(topology(), address));
}

std::optional<distance> distance_over_pci(
  const std::string& device, const std::string& pci_address, const std::string& topology_xml) {
  auto other = topology_xml.empty() ? nullptr : load(topology_xml);
  auto* t = topology_xml.empty() ? topology() : other.get();
  auto* from = find_device(t, device);
  auto* to = find_pci(t, pci_address);
  for (auto* o = from; to && o; o = o->parent)
    if (o->type == HWLOC_OBJ_BRIDGE && is_above(o, to))
      return o->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI ? distance::same_switch
                                                                   : distance::same_root;
  return std::nullopt;
}

processor_list processors_near_device(const std::string& device, const std::string& topology_xml) {
  return processors_near(device, topology_xml, find_device);
}

processor_list processors_near_devices(
  const std::vector<std::string>& devices, const std::string& topology_xml) {
  std::set<std::uint32_t> all;
  for (auto& device : devices)
    for (auto processor : processors_near_device(device, topology_xml))
      all.insert(processor);
  return {all.begin(), all.end()};
}

processor_list processors_near_pci(
  const std::string& pci_address, const std::string& topology_xml) {
  return processors_near(pci_address, topology_xml, find_pci);
}

std::string text_of(const processor_list& processors) {
  std::string out;
  for (std::size_t i = 0, next = 0; i < processors.size(); i = next) {
    for (next = i + 1; next < processors.size() && processors[next] == processors[next - 1] + 1;)
      ++next;
    auto last = processors[next - 1];
    out += fmt::format("{}{}", out.empty() ? "" : ",", processors[i]);
    if (last != processors[i])
      out += fmt::format("-{}", last);
  }
  return out;
}

void stay_on(const processor_list& processors) {
  auto& place = here();
  if (!place.allowed)
    return;
  auto cpus = make_bitmap();
  for (auto processor : processors)
    hwloc_bitmap_set(cpus.get(), processor);
  place.near_nodes = 0;
  place.is_kept = place.go_to(cpus.get());
  if (place.is_kept)
    return;
  hwloc_bitmap_copy(cpus.get(), place.allowed.get());
  place.go_to(cpus.get());
}

void stay_near(std::uint64_t node_mask) {
  if (!topology() || node_mask == 0)
    return;
  auto& place = here();
  if (!place.allowed || place.is_kept || place.near_nodes == node_mask)
    return;
  bitmap_ptr nodes = make_bitmap(), cpus = make_bitmap();
  hwloc_bitmap_from_ith_ulong(nodes.get(), 0, node_mask);
  hwloc_cpuset_from_nodeset(topology(), cpus.get(), nodes.get());
  if (place.go_to(cpus.get()))
    place.near_nodes = node_mask;
}

void stay_near_memory(const std::byte* data) {
  // To read the topology takes milliseconds.
  static const auto several_nodes = std::filesystem::exists("/sys/devices/system/node/node1");
  if (several_nodes && data)
    stay_near(node_mask_of_memory(data, 1));
}

std::string nodes_near_device(const std::string& device) {
  auto mask = node_mask_of_device(device);
  std::string out;
  for (int i = 0; i < 64; ++i)
    if (mask & (1ull << i))
      out += fmt::format("{}{}", out.empty() ? "" : ",", i);
  return out;
}

} // namespace millrace::transport
