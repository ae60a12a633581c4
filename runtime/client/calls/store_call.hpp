// The longer operations of a repository, each built on one client core.
// Internal, used by `repository`; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/placement.hpp>
#include <millrace/runtime/client/repository.hpp>

namespace millrace::runtime {

/// Stores a model to provider number `provider`.
future<receipt> begin_store(
  const std::shared_ptr<client_core>& core, std::size_t provider, const std::string& model,
  const model_graph& graph, std::vector<tensor_view> tensors, const store_options& options);

/// Lists the models of every provider of a group page by page, and merges the lists.
future<listed<model_summary>> list_models(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& prefix,
  std::uint32_t page);

/// Sends a request whose reply says only whether it worked.
template <class Request>
future<void> acknowledge(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  Request request) {
  auto provider = place(model, group, core->where().providers);
  if (!provider)
    return ready_future<void>(fail(provider.error()));
  auto done = core->make_promise<void>();
  auto out = done.get_future();
  core->ask<actors::store_service>(
    *provider, std::move(request),
    [core, done](result<actors::done_reply> r) { done.set(r ? result<void>{} : fail(r.error())); });
  return out;
}

} // namespace millrace::runtime
