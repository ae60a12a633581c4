// The phases of train_digits: train and store; checkpoint and resume; verify, perhaps after a
// restart of the providers.
// Called by main.cpp.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <string>

namespace train_digits {

/// The names under which the model is stored: after each epoch, for each epoch, and at the end.
inline constexpr const char* newest_name = "digits/first";
inline constexpr const char* epoch_names = "digits/epoch-";
inline constexpr const char* final_name = "digits/final";
/// The seed of the data's split: every phase has the same test images.
inline constexpr std::uint32_t split_seed = 7;

struct phase_options {
  std::string config;  // the configuration of the cluster
  std::string data;    // the file with the digits
  std::string weights; // `train` writes the final weights there; `verify` compares with them
  std::string summary; // the results are also appended there; empty: nowhere
  std::string report;  // `train` writes its measurements there as JSON; empty: nowhere
  std::string job = "digits/job"; // the model name of the checkpoints
  std::uint64_t killed_at = 0; // `checkpoint` kills itself while it saves this iteration; 0: never
  int epochs = 30;
  double accuracy_min = 0.93;
};

/// Trains and stores at the same time, starts a second model from parts of the first, and stores
/// the final one durably.
/// Errors:  `internal` when the accuracy is too low; those of the operations.
[[nodiscard]] millrace::status train_phase(const phase_options& options);

/// Trains with a checkpoint at every iteration. When run again after it was killed, it continues
/// from the newest checkpoint, to the same weights as without the interruption.
/// Errors:  those of the operations.
[[nodiscard]] millrace::status checkpoint_phase(const phase_options& options);

/// Loads the final model.
/// Errors:  `corrupt_data` unless it is the same bit for bit.
[[nodiscard]] millrace::status verify_phase(const phase_options& options);

} // namespace train_digits
