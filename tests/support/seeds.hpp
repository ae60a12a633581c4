// Runs a scenario with many seeds. Used by tests that draw everything from a seed.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace millrace::testing {

/// Says which promise the product has broken.
struct promise_broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void demand(bool holds, const std::string& promise) {
  if (!holds)
    throw promise_broken{promise};
}

/// Returns true when one seed is repeated.
bool is_single_seed();

/// Runs a scenario with the seeds from 0, or from MILLRACE_FIRST_SEED: as many as MILLRACE_SEEDS
/// says, else for MILLRACE_SEED_SECONDS, else `seeds`; or with MILLRACE_SEED alone. Prints the
/// seeds that failed and the command that repeats them. It ends after five of them.
void run_seeds(std::uint64_t seeds, const std::function<void(std::uint64_t)>& run);

/// A seed that breaks a promise, and how.
struct failed_seed {
  std::uint64_t seed = 0;
  std::string why; // empty: none did
};

/// Runs a scenario with the seeds from 0 until one breaks a promise; at most `seeds`.
failed_seed first_that_fails(std::uint64_t seeds, const std::function<void(std::uint64_t)>& run);

} // namespace millrace::testing
