// Removes models: all versions, wherever in their group they are.
// Internal, used by `repository`, `store_call` and `model_listing`.
#pragma once

#include <millrace/runtime/client/calls/model_search.hpp>

#include <memory>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Erases all versions of a model, the newest one last. An error says which are erased.
void erase_model(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  time_point deadline, completion<void> done);

/// Erases these versions, in their order. Those that are gone already count as erased. What was
/// stored meanwhile stays. An error says how many are erased.
void erase_copies(
  const std::shared_ptr<client_core>& core, const std::string& model,
  const actors::placement_claim& by, std::vector<model_copy> copies, time_point deadline,
  completion<void> done);

} // namespace millrace::runtime
