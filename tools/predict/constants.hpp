// The constants of a cluster, as a file of JSON has them.
// Used by `millrace predict`.
#pragma once

#include <millrace/actors/broadcast/cost_model.hpp>
#include <millrace/core/status.hpp>
#include <millrace/tools/output.hpp>

#include <string>

namespace millrace::tools {

/// Reads {"host_bytes_per_s": 12.5e9, ...}. A constant that the file leaves out has its default.
/// Errors: that of the system naming the file; `invalid_argument` naming the file and what is wrong
///         in it.
result<actors::broadcast_costs> read_constants(const std::string& file);

/// Returns all constants in the form of that file.
json constants_json(const actors::broadcast_costs& costs);

} // namespace millrace::tools
