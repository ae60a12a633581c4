// Prints a stored model as tables and as JSON.
// Used by `millrace models`.
#pragma once

#include <millrace/runtime/client/repository.hpp>
#include <millrace/tools/output.hpp>

#include <iosfwd>

namespace millrace::tools {

json to_json(const model_summary& model);
json to_json(const model_info& model);

/// Prints the layers with their kind, the beginning of their id and their inputs, and the tensors
/// with their layer.
void print(std::ostream& out, const model_info& model);

} // namespace millrace::tools
