// The training loop: full epochs of shuffled mini-batches. Called by every phase that trains.
#pragma once

#include "mlp.hpp"

#include <functional>

namespace train_digits {

struct training_plan {
  int epochs = 30;
  Eigen::Index batch = 16;
  sgd optimiser{};
  std::uint32_t seed = 1; // of the order of the images
};

/// Trains the model; calls `after_epoch(1...)` between epochs. Equal plans give equal weights.
void train(
  mlp& model, const samples& on, const training_plan& plan,
  const std::function<void(int epoch)>& after_epoch = {});

} // namespace train_digits
