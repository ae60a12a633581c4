// Begins stores with a snapshot, collects their receipts at the end.
#include "background_saver.hpp"

#include <algorithm>

namespace train_digits {

using millrace::steady_clock;

void background_saver::save(const std::string& name, mlp& model) {
  auto begun = steady_clock::now();
  under_way_.push_back(to_.store(name, model.graph(), model.tensors(), {.snapshot = true}));
  milliseconds took = steady_clock::now() - begun;
  held_up_ += took;
  longest_save_ = std::max(longest_save_, took);
}

millrace::status background_saver::finish() {
  auto begun = steady_clock::now();
  auto outcomes = millrace::when_all(under_way_).get();
  waited_at_the_end_ = steady_clock::now() - begun;
  under_way_.clear();
  for (auto& outcome : outcomes) {
    if (!outcome)
      return outcome.error();
    receipts_.push_back(std::move(*outcome));
  }
  return {};
}

} // namespace train_digits
