// Which way the bytes of each GPU would take to other hosts. Asked by `millrace doctor`.
#pragma once

#include <millrace/tools/doctor/doctor.hpp>
#include <millrace/transport/memory/device_memory.hpp>
#include <millrace/transport/verbs/verbs_state.hpp>

#include <vector>

namespace millrace::tools::doctor {

/// The devices of all kinds of this build. May start their drivers; those that do not start have no devices.
std::vector<transport::device_facts> find_gpus();

/// A finding for each GPU: with each RDMA port that is in use by dma-buf, by peer memory or through staging memory.
std::vector<finding> examine_gpus(
  const std::vector<transport::device_facts>& gpus, const transport::verbs_state& state);

} // namespace millrace::tools::doctor
