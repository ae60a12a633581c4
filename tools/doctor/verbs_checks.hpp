// Checks how the verbs driver sees this machine's RDMA devices.
// Called by `millrace doctor`.
#pragma once

#include <millrace/tools/doctor/doctor.hpp>
#include <millrace/transport/verbs/verbs_state.hpp>

#include <vector>

namespace millrace::tools::doctor {

/// Returns a finding for each port, with the chosen GID and the reason; none where there is no
/// device.
std::vector<finding> examine_verbs(const transport::verbs_state& state);

} // namespace millrace::tools::doctor
