// Trains a second model that begins with layers of a stored one.
// Called after the first model is trained.
#pragma once

#include "training.hpp"

#include <millrace/runtime/client/repository.hpp>

#include <string>

namespace train_digits {

/// The results of transfer learning.
struct transfer_outcome {
  double loaded_accuracy = 0;  // first layers loaded and frozen, new head trained
  double scratch_accuracy = 0; // as many epochs from random weights
  std::uint64_t loaded_bytes = 0;
  std::uint64_t model_bytes = 0; // the whole stored model
  std::string loaded_by;         // the name of the driver
};

/// Learns to tell even digits from odd ones, from a few examples: once with the hidden layers of
/// the model stored as `source`, once from random weights.
///
/// Only the tensors of the hidden layers are loaded: those of the first layer by name, straight
/// into the matrices of the new model; those of the second layer by the layer's id.
/// Errors:  those of the loads.
millrace::result<transfer_outcome> learn_even_or_odd(
  const millrace::repository& repo, const std::string& source, const dataset& digits,
  const training_plan& plan);

} // namespace train_digits
