// A data-parallel trainer that computes on every core, with one thread for each.
// Used by bench_training.
#pragma once

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace millrace::bench {

/// Computes forward and backward as products of matrices, layer by layer: no thread begins a layer
/// before all have ended the one before, as in OpenMP. The update writes every parameter.
/// Threads: one at a time.
class core_trainer {
public:
  core_trainer(std::span<std::byte> parameters, unsigned threads);
  ~core_trainer();
  core_trainer(const core_trainer&) = delete;
  core_trainer& operator=(const core_trainer&) = delete;

  /// Chooses the amount of work so that one iteration takes about `seconds`.
  void calibrate(double seconds);

  void forward_and_backward();
  void update();

private:
  struct part;

  void each(std::function<void(part&)> work);

  std::function<void(part&)> work_; // empty: the threads end
  std::barrier<> begin_, end_, layer_;
  std::uint32_t products_ = 1; // of each thread in each layer
  std::vector<std::unique_ptr<part>> parts_;
  std::vector<std::thread> threads_;
};

/// Returns the seconds that the threads of this process whose name begins with `prefix` have spent
/// on cores. Those of threads that have ended are not in it.
double core_seconds_of_threads(const std::string& prefix);

} // namespace millrace::bench
