// A second model that begins with layers of a stored one. Called after the first is trained.
#pragma once

#include "training.hpp"

#include <millrace/runtime/client/repository.hpp>

#include <string>

namespace train_digits {

/// What transfer learning brought.
struct transfer_outcome {
  double loaded_accuracy = 0;  // first layers loaded and frozen, new head trained
  double scratch_accuracy = 0; // the same epochs from random weights
  std::uint64_t loaded_bytes = 0;
  std::uint64_t model_bytes = 0; // of the whole stored model
  std::string loaded_by;         // the driver
};

/// Learns to tell even from odd digits, from a few examples: once on top of the hidden layers of
/// the model stored as `source`, once from nothing.
///
/// Only the tensors of the hidden layers are loaded: those of the first by name, straight into the
/// matrices of the new model; those of the second by the id of their layer.
/// Errors: those of the loads.
millrace::result<transfer_outcome> learn_even_or_odd(
  const millrace::repository& repo, const std::string& source, const dataset& digits,
  const training_plan& plan);

} // namespace train_digits
