// Descriptions of stored models, checked before the client acts on them.
// Internal, used by `repository`; needs CAF.
#pragma once

#include <millrace/actors/load_messages.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/known_models.hpp>
#include <millrace/runtime/client/repository.hpp>

#include <memory>
#include <string>

namespace millrace::runtime {

/// A model's record, and where it is.
struct found_record {
  model_record record;
  std::shared_ptr<const known_model> known; // what loads need of it
  std::size_t provider = 0;
  actors::placement_claim by; // for further requests to this provider
};

/// Asks the provider that has a model for its record, which comes by the deadline. `version` 0 is
/// the newest, which the client keeps for the loads that follow.
/// Errors:  `protocol_error` for a record of another model or version, or for an inconsistent one:
///          sizes that overflow, tensors whose layers are missing.
void ask_record(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  std::uint64_t version, time_point deadline, completion<found_record> done);

/// Completes a checked record to a `model_info`. Layers that are not in the cache are fetched in
/// one request, by the deadline.
/// Errors:  `protocol_error` when a layer is missing in the reply.
void resolve_layers(
  const std::shared_ptr<client_core>& core, std::size_t provider, model_record record,
  time_point deadline, const promise<model_info>& done);

} // namespace millrace::runtime
