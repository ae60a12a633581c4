// A driver rig with two processes and RDMA devices of their own, as MILLRACE_TEST_VERBS says.
// Used by the driver contract in the lab guest.
#pragma once

#include "process_rig.hpp"

#include <millrace/tests/support/verbs_devices.hpp>

namespace millrace::testing {

class verbs_rig : public process_rig {
public:
  static bool configured() { return std::getenv("MILLRACE_TEST_VERBS") != nullptr; }

  explicit verbs_rig(verbs_devices which = verbs_devices::from_environment())
    : process_rig(words_with(which.ours), words_with(which.theirs)) {
    wait_until_reached(); // queue pairs come first
  }

  driver_capabilities capabilities() const override {
    return {.same_host = true, .across_hosts = true, .strided_regions = false, .any_file = false};
  }
  // It has keys, no mappings.
  pid_t owner_pid() const override { return 0; }

private:
  static std::vector<std::string> words_with(const std::vector<std::string>& devices) {
    std::vector<std::string> words{"verbs"};
    for (auto& device : devices)
      words.push_back("device=" + device);
    return words;
  }
};

} // namespace millrace::testing
