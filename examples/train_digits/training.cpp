// Shuffles the images, cuts them into batches, and trains.
#include "training.hpp"

#include <algorithm>
#include <numeric>
#include <random>

namespace train_digits {

void train(
  mlp& model, const samples& on, const training_plan& plan, const training_events& events) {
  std::mt19937 random{plan.seed};
  std::vector<Eigen::Index> order(static_cast<std::size_t>(on.size()));
  std::iota(order.begin(), order.end(), Eigen::Index{0});
  matrix images;
  std::vector<int> classes;
  std::uint64_t iteration = 0;
  for (int epoch = 1; epoch <= plan.epochs; ++epoch) {
    std::shuffle(order.begin(), order.end(), random);
    for (Eigen::Index first = 0; first < on.size(); first += plan.batch) {
      if (++iteration <= plan.learnt)
        continue;
      auto count = std::min(plan.batch, on.size() - first);
      images.resize(count, on.images.cols());
      classes.resize(static_cast<std::size_t>(count));
      for (Eigen::Index i = 0; i < count; ++i) {
        auto from = order[static_cast<std::size_t>(first + i)];
        images.row(i) = on.images.row(from);
        classes[static_cast<std::size_t>(i)] = on.classes[static_cast<std::size_t>(from)];
      }
      model.learn(images, classes, plan.optimiser, events.before_update);
      if (events.after_iteration)
        events.after_iteration(iteration);
    }
    if (events.after_epoch)
      events.after_epoch(epoch);
  }
}

} // namespace train_digits
