// Descriptions of stored models, checked before the client acts on them.
// Internal, used by `repository`; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/repository.hpp>

#include <string>

namespace millrace::runtime {

/// Asks provider number `provider` for a model's record. `version` 0 is the newest.
/// Errors:  `protocol_error` for a record of another model or version, or for an inconsistent one:
///          sizes that overflow, tensors whose layers are missing.
void ask_record(
  const std::shared_ptr<client_core>& core, std::size_t provider, const std::string& model,
  std::uint64_t version, completion<model_record> done);

/// Completes a checked record to a `model_info`. Layers that are not in the cache are fetched in
/// one request.
/// Errors:  `protocol_error` when a layer is missing in the reply.
void resolve_layers(
  const std::shared_ptr<client_core>& core, std::size_t provider, model_record record,
  const promise<model_info>& done);

} // namespace millrace::runtime
