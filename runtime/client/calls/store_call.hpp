// Stores models.
// Internal, used by `repository`; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/placement.hpp>
#include <millrace/runtime/client/calls/request_batch.hpp>
#include <millrace/runtime/client/repository.hpp>

#include <cstdint>

namespace millrace::runtime {

/// When the tensors are read.
enum class store_from : std::uint8_t {
  tensors,  // by the provider; `staged` has no state
  snapshot, // by the movers of this process, where there is room for a copy
};

/// Stores a model to the provider at which its name is placed. With a batch, the request of a small
/// model is added there.
pending_store begin_store(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  const model_graph& graph, std::vector<tensor_view> tensors, const store_options& options,
  store_from from, store_batch* batch = nullptr);
/// Returns a store that has failed before it began.
pending_store failed_store(const status& why);

} // namespace millrace::runtime
