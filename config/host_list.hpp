// Lists of hosts as Slurm writes them: "n[01-03,7],login". Read where SLURM_JOB_NODELIST says which hosts a job has.
#pragma once

#include <millrace/core/status.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace millrace::config {

inline constexpr std::size_t host_list_bytes_max = 1u << 16;
inline constexpr std::size_t listed_hosts_max = 16'384;

/// The hosts of a list, in its order.
///
/// Commas separate hosts; brackets hold numbers and ranges, whose first number says how many digits all of them have at
/// least; a host may have several brackets ("r[0-1]n[0-3]"), of which the last one turns fastest.
/// Errors: `invalid_argument` for what is no such list, longer than `host_list_bytes_max`, or names more than
/// `listed_hosts_max` hosts.
result<std::vector<std::string>> expand_host_list(std::string_view text);

} // namespace millrace::config
