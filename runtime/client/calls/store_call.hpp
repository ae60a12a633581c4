// The longer operations of a repository, each built on one client core.
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

/// Lists the models of every provider of a group page by page, and merges the lists.
future<listed<model_summary>> list_models(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& prefix,
  std::uint32_t page);

} // namespace millrace::runtime
