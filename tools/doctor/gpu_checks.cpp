// Describes each pair of a GPU and an RDMA port in a sentence.
#include <millrace/tools/doctor/checks.hpp>
#include <millrace/tools/doctor/gpu_checks.hpp>
#include <millrace/tools/text.hpp>
#include <millrace/transport/memory/memory_distance.hpp>

#include <fmt/format.h>

namespace millrace::tools::doctor {

namespace {

const char* way_between(const transport::device_facts& gpu, const transport::verbs_port& port) {
  if (gpu.dma_buf && port.dma_buf)
    return "dma-buf";
  return gpu.peer_memory ? "peer memory" : "staging";
}

finding judge(
  const transport::device_facts& gpu, const transport::verbs_state& state,
  const std::string& topology_xml) {
  std::vector<std::string> facts{fmt::format("{}, {}", gpu.model, human_size(gpu.size_bytes))};
  if (auto near = transport::processors_near_pci(gpu.pci_address, topology_xml); !near.empty())
    facts.push_back("near processors " + transport::text_of(near));
  bool staged = false, any = false;
  for (auto& port : state.ports) {
    if (!port.remark.empty())
      continue;
    std::string way = way_between(gpu, port);
    facts.push_back(fmt::format("{}:{} by {}", port.device, port.port, way));
    staged |= way == "staging";
    any = true;
  }
  if (!any)
    facts.emplace_back("no RDMA port in use: other hosts through staging over tcp");
  auto f = staged ? note(
                      join(facts),
                      "modprobe nvidia_peermem, or the open NVIDIA kernel modules and an RDMA "
                      "device that takes a dma-buf")
                  : ok(join(facts));
  f.check = "gpu " + gpu.name;
  return f;
}

} // namespace

std::vector<transport::device_facts> find_gpus() {
  std::vector<transport::device_facts> all;
  for (auto& kind : transport::device_kinds())
    if (auto found = kind->examine())
      all.insert(all.end(), found->begin(), found->end());
  return all;
}

std::vector<finding> examine_gpus(
  const std::vector<transport::device_facts>& gpus, const transport::verbs_state& state,
  const std::string& topology_xml) {
  std::vector<finding> all;
  all.reserve(gpus.size());
  for (auto& gpu : gpus)
    all.push_back(judge(gpu, state, topology_xml));
  return all;
}

} // namespace millrace::tools::doctor
