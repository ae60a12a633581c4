// Finds out how the bytes of each GPU would travel to other hosts.
// Called by `millrace doctor`.
#pragma once

#include <millrace/tools/doctor/doctor.hpp>
#include <millrace/transport/memory/device_memory.hpp>
#include <millrace/transport/verbs/verbs_state.hpp>

#include <string>
#include <vector>

namespace millrace::tools::doctor {

/// Returns the devices of all kinds of this build. May start their drivers. A kind whose driver
/// does not start has no devices.
std::vector<transport::device_facts> find_gpus();

/// Returns a finding for each GPU: how it works with each RDMA port in use: by dma-buf, by peer
/// memory or through staging memory.
/// `topology_xml`: of the host, as hwloc writes it; empty: this one.
std::vector<finding> examine_gpus(
  const std::vector<transport::device_facts>& gpus, const transport::verbs_state& state,
  const std::string& topology_xml = {});

} // namespace millrace::tools::doctor
