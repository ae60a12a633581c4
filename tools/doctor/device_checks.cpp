// Checks devices that only some machines have. Millrace works without each of them.
#include <millrace/tools/doctor/checks.hpp>
#include <millrace/transport/memory/memory_distance.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace millrace::tools::doctor {

namespace {

// Returns "ACTIVE" for "4: ACTIVE", as the kernel writes it.
std::string after_colon(const std::string& text) {
  auto colon = text.find(": ");
  return colon == text.npos ? text : text.substr(colon + 2);
}

std::vector<std::string> with_prefix(std::vector<std::string> names, std::string_view prefix) {
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(prefix); });
  return names;
}

// Returns names such as "nvidia0", but not "nvidiactl".
std::vector<std::string> gpu_files(const machine& m) {
  auto files = with_prefix(m.names("/dev"), "nvidia");
  std::erase_if(files, [](const std::string& name) {
    auto number = name.substr(6);
    return number.empty() || number.find_first_not_of("0123456789") != number.npos;
  });
  return files;
}

} // namespace

finding check_rdma(const machine& m) {
  constexpr auto devices = "/sys/class/infiniband";
  std::vector<std::string> found;
  bool active = false;
  for (auto& device : m.names(devices))
    for (auto& port : m.names(std::string{devices} + "/" + device + "/ports")) {
      auto where = fmt::format("{}/{}/ports/{}", devices, device, port);
      auto state = after_colon(m.read(where + "/state").value_or("?"));
      active |= state == "ACTIVE";
      auto rate = m.read(where + "/rate").value_or("");
      auto near = transport::text_of(transport::processors_near_device(device, m.topology_xml));
      found.push_back(fmt::format(
        "{}:{} {}{}{}{}{}", device, port, state, rate.empty() ? "" : ", ", rate,
        near.empty() ? "" : ", near processors ", near));
    }
  if (found.empty())
    return missing(
      "none",
      "an RDMA NIC, or in software over any: modprobe rdma_rxe, then "
      "rdma link add rxe0 type rxe netdev DEVICE");
  if (!active)
    return note(join(found), "bring a port up: ibportstate, or ip link set DEVICE up");
  if (with_prefix(m.names("/dev/infiniband"), "uverbs").empty())
    return note(join(found) + ", but no /dev/infiniband/uverbs*", "modprobe ib_uverbs");
  return ok(join(found));
}

finding check_kernel_tls(const machine& m) {
  if (m.exists("/proc/net/tls_stat") || m.exists("/sys/module/tls"))
    return ok("available");
  return note(
    "not loaded; streams with tcp.encrypt are encrypted in the process",
    "modprobe tls, where the kernel has it (CONFIG_TLS)");
}

finding check_gpus(const machine& m) {
  constexpr auto gpus = "/proc/driver/nvidia/gpus";
  std::vector<std::string> found;
  for (auto& gpu : m.names(gpus))
    found.push_back(m.field(std::string{gpus} + "/" + gpu + "/information", "Model").value_or(gpu));
  auto files = gpu_files(m);
  if (found.empty())
    found = files;
  if (found.empty())
    return missing("none", "an NVIDIA GPU and its driver; tensors in host memory need none");
  if (files.empty())
    return note(
      join(found) + ", but no /dev/nvidia*",
      "nvidia-modprobe -u -c=0, or give the container its devices (--gpus all)");
  return ok(join(found));
}

finding check_persistent_memory(const machine& m) {
  auto found = with_prefix(m.names("/dev"), "pmem");
  for (auto& device : with_prefix(m.names("/dev"), "dax"))
    found.push_back(device);
  if (!found.empty())
    return ok(join(found));
  auto regions = with_prefix(m.names("/sys/bus/nd/devices"), "region");
  if (!regions.empty())
    return note(join(regions) + ", without a namespace", "ndctl create-namespace --mode=fsdax");
  return missing(
    "none", "NVDIMMs, or memory set aside for trying: memmap=4G!4G on the kernel's command line");
}

} // namespace millrace::tools::doctor
