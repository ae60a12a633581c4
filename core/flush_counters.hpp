// Counters of the step flusher. Kept by it, reported in the provider's status.
#pragma once

#include <millrace/core/inspect.hpp>

#include <cstdint>

namespace millrace {

/// Counts the steps of checkpoints that a provider copies to a directory.
struct flush_counters {
  std::uint64_t waiting = 0; // models with a step that waits or is being copied
  std::uint64_t steps = 0;   // copied since the start, or found in the directory
  std::uint64_t failures = 0;
  std::uint64_t bytes = 0; // the bytes of tensors

  friend bool operator==(const flush_counters&, const flush_counters&) = default;
};

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, flush_counters& x) {
  return f(x.waiting, x.steps, x.failures, x.bytes);
}

} // namespace millrace
