// Lists of hosts as Slurm writes them: "n[01-03,7],login". Used to read SLURM_JOB_NODELIST, which
// names the hosts of a job.
#pragma once

#include <millrace/core/status.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace millrace::config {

inline constexpr std::size_t host_list_bytes_max = 1u << 16;
inline constexpr std::size_t listed_hosts_max = 16'384;

/// Returns the hosts of a list, in its order.
///
/// Commas separate hosts. Brackets hold numbers and ranges; the first number of a range gives the
/// least number of digits for all of it. A host may have several brackets ("r[0-1]n[0-3]"); the
/// last one varies fastest.
/// Errors:  `invalid_argument` for a malformed list, one longer than `host_list_bytes_max`, or one
///          of more than `listed_hosts_max` hosts.
result<std::vector<std::string>> expand_host_list(std::string_view text);

} // namespace millrace::config
