// Runs the contract with every driver: `local` with memory of this process, `shm` and `verbs` with
// memory of a child; also with device memory.
#include "local_rig.hpp"
#include "verbs_rig.hpp"

using namespace millrace;
using namespace millrace::testing;

namespace {

using words = std::vector<std::string>;

constexpr transport::driver_capabilities mapping{.maps = true};

const bool registered[] = {
  add_driver_contract("local", [] { return std::make_unique<local_rig>("local", false, mapping); }),
  add_driver_contract(
    "local_device", [] { return std::make_unique<local_rig>("local", true, mapping); }),
  add_driver_contract("shm", [] { return std::make_unique<shm_rig>(); }),
  add_driver_contract(
    "shm_device",
    [] {
      return std::make_unique<shm_rig>(words{"shm", "device"});
    }),
  // Only where a test names the RDMA devices.
  !verbs_rig::configured() ||
    add_driver_contract("verbs", [] { return std::make_unique<verbs_rig>(); }),
  !verbs_rig::configured() ||
    add_driver_contract("verbs_staged", [] { return std::make_unique<verbs_rig>(true); }),
  !verbs_rig::configured() ||
    add_driver_contract("verbs_rdma_cm", [] { return std::make_unique<verbs_rig>(false, true); }),
};

} // namespace
