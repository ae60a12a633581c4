// A driver rig with two processes and RDMA devices of their own, as MILLRACE_TEST_VERBS says.
// Used by the driver contract in the lab guest.
#pragma once

#include "process_rig.hpp"

#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/verbs_devices.hpp>

namespace millrace::testing {

class verbs_rig : public process_rig {
public:
  static bool configured() { return std::getenv("MILLRACE_TEST_VERBS") != nullptr; }

  /// `more`: words for both processes, see rig_options.hpp.
  explicit verbs_rig(const std::vector<std::string>& more = {})
    : verbs_rig(verbs_devices::from_environment(), more) {}
  verbs_rig(const verbs_devices& which, const std::vector<std::string>& more)
    : process_rig(words_with(which.ours, more), words_with(which.theirs, more)) {
    // Connected is not yet reachable: queue pairs come first.
    auto handle = expose({1, 1, 0}, access_mode::read, 0);
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{60};
    result<transfer_report> moved = fail(errc::unavailable, "not tried");
    while (!moved && std::chrono::steady_clock::now() < deadline) {
      usleep(10'000);
      held_completion<transfer_report> done;
      fabric().submit({direction::read, handle, {}, false, nullptr}, done.callback());
      moved = done.take();
    }
    BOOST_REQUIRE_MESSAGE(moved.has_value(), why(moved));
    withdraw(handle);
    auto by_rdma_cm = std::count(more.begin(), more.end(), "rdma_cm") > 0;
    auto stats = fabric().verbs().value();
    for (auto& rail : stats.rails)
      BOOST_TEST((rail.connected_by == "rdma_cm") == by_rdma_cm);
  }

  driver_capabilities capabilities() const override {
    return {.same_host = true, .across_hosts = true, .strided_regions = false, .any_file = false};
  }
  // It has keys, no mappings.
  pid_t owner_pid() const override { return 0; }

private:
  static std::vector<std::string> words_with(
    const std::vector<std::string>& devices, const std::vector<std::string>& more) {
    std::vector<std::string> words{"verbs"};
    words.insert(words.end(), more.begin(), more.end());
    for (auto& device : devices)
      words.push_back("device=" + device);
    return words;
  }
};

} // namespace millrace::testing
