// Loads from models: into targets that the caller describes, and of tensors or layers that the
// client finds in the model's description. Internal, used by `repository`; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/known_models.hpp>
#include <millrace/runtime/client/calls/request_batch.hpp>
#include <millrace/runtime/client/repository.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Loads into targets. `batch` gets the request, if it is small.
future<load_receipt> begin_load(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  std::vector<load_target> targets, std::uint64_t version, time_point deadline,
  load_batch* batch = nullptr);

/// Picks tensors of a model.
/// Errors:  `not_found` for what the model does not have.
using tensor_choice = std::function<result<std::vector<tensor_desc>>(const known_model& model)>;

/// Loads the tensors that `choose` picks, densely, into a buffer. If the client knows a version of
/// the model, that is one message: the tensors are chosen from that version, and the newest is
/// loaded. When the receipt is of another version, or the newest has no such tensors, the provider
/// is asked for its description, and the tensors are loaded again if they are others.
/// Source:  DStore, section 3: the client's cache of layers.
future<loaded_tensors> begin_load_of(
  std::shared_ptr<client_core> core, std::string group, std::string model,
  std::span<std::byte> buffer, const load_options& options, tensor_choice choose);

} // namespace millrace::runtime
