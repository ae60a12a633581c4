// Loads tensors from all shards of one step. Internal, used by `checkpoints`; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/checkpoints.hpp>

#include <memory>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Does the work of `checkpoints::load_global`.
future<global_load_receipt> begin_global_load(
  std::shared_ptr<client_core> core, std::string group, std::string model,
  std::vector<load_target> targets, const global_load_options& options);

} // namespace millrace::runtime
