// Prints the description of a stream as JSON. Used by the commands of `millrace data`.
#pragma once

#include <millrace/core/sample_stream.hpp>
#include <millrace/tools/output.hpp>

namespace millrace::tools {

/// All facts but the node.
json to_json(const stream_status& stream);

} // namespace millrace::tools
