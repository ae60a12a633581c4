// Stores models.
// Internal, used by `repository`; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/placement.hpp>
#include <millrace/runtime/client/repository.hpp>

namespace millrace::runtime {

/// Stores a model to the provider at which its name is placed.
future<receipt> begin_store(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  const model_graph& graph, std::vector<tensor_view> tensors, const store_options& options);

} // namespace millrace::runtime
