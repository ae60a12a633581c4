// Begins stores with a snapshot, and collects their receipts at the end.
#include "background_saver.hpp"

#include <algorithm>
#include <ctime>

namespace train_digits {

using millrace::steady_clock;

namespace {

// Returns the processor time of this thread.
milliseconds processor_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds{now.tv_sec} + std::chrono::nanoseconds{now.tv_nsec};
}

} // namespace

void background_saver::save(const std::string& name, mlp& model) {
  auto worked_before = processor_time();
  auto begun = steady_clock::now();
  auto saving = to_.store_snapshot(name, model.graph(), model.tensors());
  copies_.push_back(saving.staged);
  under_way_.push_back(saving.stored);
  milliseconds took = steady_clock::now() - begun;
  held_up_ += took;
  longest_save_ = std::max(longest_save_, took);
  worked_ += processor_time() - worked_before;
}

void background_saver::fence() {
  if (copies_.empty())
    return;
  auto worked_before = processor_time();
  auto begun = steady_clock::now();
  for (auto& copied : copies_)
    static_cast<void>(copied.result()); // what failed is reported by `finish`
  copies_.clear();
  held_up_ += steady_clock::now() - begun;
  worked_ += processor_time() - worked_before;
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
