// The training loop: full epochs of shuffled mini-batches.
// Called by every phase that trains.
#pragma once

#include "mlp.hpp"

#include <functional>

namespace train_digits {

struct training_plan {
  int epochs = 30;
  Eigen::Index batch = 16;
  sgd optimiser{};
  std::uint32_t seed = 1; // for the order of the images
  /// The number of mini-batches that the model has learnt already; they are skipped.
  std::uint64_t learnt = 0;
};

/// Functions to call during the training.
struct training_events {
  std::function<void(int epoch)> after_epoch = {};                   // 1...
  std::function<void()> before_update = {};                          // of the parameters
  std::function<void(std::uint64_t iteration)> after_iteration = {}; // 1..., over all epochs
};

/// Trains the model. Equal plans give equal weights, in however many parts they are run.
void train(
  mlp& model, const samples& on, const training_plan& plan, const training_events& events = {});

} // namespace train_digits
