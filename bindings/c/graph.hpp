// A model's architecture between the structures of C and those of the library.
#pragma once

#include "request.hpp"

#include <millrace/core/model_graph.hpp>

#include <cstddef>
#include <vector>

namespace millrace::bindings {

/// The layers that a program gives, and what the argument is called in errors.
struct given_layers {
  const char* argument;
  const millrace_layer* first;
  std::size_t count;
};

/// Makes the graph of the layers, and gives each tensor to the layer with the longest label that
/// its name begins with.
/// Errors: `invalid_argument` for a field that is wrong, naming a label that is given twice, or a
///         tensor that has no layer.
result<model_graph> graph_of(
  const call& here, const given_layers& layers, const std::vector<tensor_view>& tensors);

/// Lets `f`, which has the tensors of the model, have its layers, too.
void describe_layers(const model_info& model, findings& f);

} // namespace millrace::bindings
