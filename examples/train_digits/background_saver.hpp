// Stores a model while it is being trained, and measures what that costs the trainer.
// Called by the training loop.
#pragma once

#include "mlp.hpp"

#include <millrace/runtime/client/repository.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace train_digits {

using milliseconds = std::chrono::duration<double, std::milli>;

/// Saves in the background. Threads: the trainer's only.
class background_saver {
public:
  explicit background_saver(millrace::repository to) : to_(std::move(to)) {}

  /// Begins to store the model as it is now. Training may go on, up to the next update.
  void save(const std::string& name, mlp& model);
  /// Waits until the parameters may be changed. Call it before each update.
  void fence();

  /// Waits until everything is stored.
  /// Errors:  that of the first save that failed.
  [[nodiscard]] millrace::status finish();

  /// Returns the time that the trainer spent in `save` and `fence`.
  milliseconds held_up() const noexcept { return held_up_; }
  milliseconds longest_save() const noexcept { return longest_save_; }
  /// Returns the processor time within it. The rest was waiting, mostly for a processor in use.
  milliseconds worked() const noexcept { return worked_; }
  /// Returns the time that the trainer, with nothing else to do, spent in `finish`.
  milliseconds waited_at_the_end() const noexcept { return waited_at_the_end_; }

  /// Returns the receipts of the providers, in the order of the saves.
  const std::vector<millrace::receipt>& receipts() const noexcept { return receipts_; }

private:
  millrace::repository to_;
  std::vector<millrace::future<void>> copies_; // that may still read the parameters
  std::vector<millrace::future<millrace::receipt>> under_way_;
  std::vector<millrace::receipt> receipts_;
  milliseconds held_up_{0};
  milliseconds longest_save_{0};
  milliseconds worked_{0};
  milliseconds waited_at_the_end_{0};
};

} // namespace train_digits
