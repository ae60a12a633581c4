// Waits for newer versions of models, and for later complete steps of checkpoints.
// Internal, used by `repository` and `checkpoints`; needs CAF.
#pragma once

#include <millrace/core/checkpoint.hpp>
#include <millrace/core/future.hpp>
#include <millrace/core/model.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace millrace::runtime {

/// Is ready when a look-up of the model finds a version above `than`. The watch waits at the
/// provider that the next store goes to, and moves when the group's view changes.
future<model_record> watch_model(
  std::shared_ptr<client_core> core, std::string group, std::string model, std::uint64_t than,
  std::chrono::milliseconds timeout);

/// Is ready when a provider has a complete step of the model above `than`. It waits at all
/// providers that may keep the model's checkpoints, and fails when it can wait at none.
future<checkpoint_summary> watch_steps(
  std::shared_ptr<client_core> core, std::string group, std::string model,
  std::optional<std::uint64_t> than, std::chrono::milliseconds timeout);

} // namespace millrace::runtime
