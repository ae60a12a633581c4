// A driver rig with two processes and an RDMA device each, as MILLRACE_TEST_VERBS says.
// Used by the driver contract in the lab guest.
#pragma once

#include "process_rig.hpp"

#include <millrace/tests/support/driver_reports.hpp>
#include <millrace/tests/support/verbs_devices.hpp>

namespace millrace::testing {

class verbs_rig : public process_rig {
public:
  static bool configured() { return std::getenv("MILLRACE_TEST_VERBS") != nullptr; }

  /// `staged`: the owner's memory is a device's that exports a descriptor which no RDMA device
  /// accepts. `rdma_cm`: connects the queue pairs by rdma_cm.
  explicit verbs_rig(
    bool staged = false, bool rdma_cm = false,
    verbs_devices which = verbs_devices::from_environment())
    : process_rig(
        words_for(which.ours, staged, rdma_cm),
        words_for(which.theirs, staged, rdma_cm, staged ? words{"device", "export"} : words{})),
      staged_(staged) {
    // Queue pairs must be connected first.
    wait_until_reached();
    for (auto& way : reported(fabric(), "connected_by"))
      BOOST_TEST((way == "rdma_cm") == rdma_cm);
  }

  transport::driver_capabilities capabilities() const override {
    return {.strided_regions = staged_, .any_file = false};
  }
  // The owner has keys but no mappings.
  pid_t owner_pid() const override { return 0; }

private:
  using words = std::vector<std::string>;

  static words words_for(const words& devices, bool staged, bool rdma_cm, const words& more = {}) {
    words out{"verbs"};
    for (auto& device : devices)
      out.push_back("device=" + device);
    if (staged)
      out.push_back("staged");
    if (rdma_cm)
      out.push_back("rdma_cm");
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }

  bool staged_;
};

} // namespace millrace::testing
