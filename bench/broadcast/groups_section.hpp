// Broadcasts among the members of a group on one host.
// Called by the main function of bench_broadcast.
#pragma once

#include <millrace/bench/common/child.hpp>
#include <millrace/bench/common/options.hpp>

namespace millrace::bench {

void groups_section(const model_options& o, const scratch_directory& files, report& out);

} // namespace millrace::bench
