// What a provider says of a stored model, checked before anything follows from it. Internal: needs CAF.
#pragma once

#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/repository.hpp>

#include <string>

namespace millrace::runtime {

/// Asks provider number `provider` for a model's record; `version` 0 is the newest.
/// Errors: `protocol_error` for a record of another model or version, or one that does not hold together: sizes that
/// overflow, tensors of layers that are not there.
void ask_record(
  const std::shared_ptr<client_core>& core, std::size_t provider, const std::string& model,
  std::uint64_t version, completion<model_record> done);

/// Completes a checked record to a `model_info`: what the cache does not know is fetched in one request.
/// Errors: `protocol_error` when a layer does not come.
void resolve_layers(
  const std::shared_ptr<client_core>& core, std::size_t provider, model_record record,
  const promise<model_info>& done);

} // namespace millrace::runtime
