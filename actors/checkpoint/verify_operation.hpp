// Reads a stored version again and compares its checksums. Run by the checkpoint manager.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/actors/load_operation.hpp>

namespace millrace::actors {

std::shared_ptr<operation> make_verify_operation(
  std::shared_ptr<operation_context> context, verify_request request, model_opener open,
  time_point arrived, answer<verify_receipt> done);

} // namespace millrace::actors
