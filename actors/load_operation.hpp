// Pushes selected tensors of one version into a caller's memory.
// Run by stores and checkpoint managers.
#pragma once

#include <millrace/actors/load_messages.hpp>
#include <millrace/actors/operation.hpp>
#include <millrace/storage/bucket.hpp>

#include <functional>
#include <memory>

namespace millrace::actors {

/// Opens the version that a load reads, in any medium.
using model_opener = std::function<void(completion<std::shared_ptr<storage::opened_model>>)>;

/// `versions_are`: what errors call the number of a version.
std::shared_ptr<operation> make_load_operation(
  std::shared_ptr<operation_context> context, load_request request, model_opener open,
  time_point arrived, answer<load_reply> done, const char* versions_are = "version");

} // namespace millrace::actors
