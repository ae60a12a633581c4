// What the verbs driver makes of this machine's RDMA devices. Asked by `millrace doctor`.
#pragma once

#include <millrace/tools/doctor/doctor.hpp>
#include <millrace/transport/verbs/verbs_state.hpp>

#include <vector>

namespace millrace::tools::doctor {

/// A finding for each port, with the GID that was chosen and why; none where there is no device.
std::vector<finding> examine_verbs(const transport::verbs_state& state);

} // namespace millrace::tools::doctor
