// Where a training stands in its data. Kept with checkpoints, on any rank, as a short text.
#pragma once

#include <millrace/core/sample_order.hpp>
#include <millrace/core/status.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

/// The same on all ranks of a job, whatever their number is.
struct loader_state {
  std::uint64_t set = 0;     // the identity of the working set
  std::uint64_t samples = 0; // of the set
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t position = 0; // in the epoch: of the next batch of all ranks
  shuffle_kind shuffle;

  /// Returns {"version":1,"set":"0123456789abcdef","samples":…,"seed":…,"epoch":…,"position":…,
  /// "shuffle":"full"}.
  std::string to_json() const;
  /// Reads it. Errors: `invalid_argument` naming what is missing or wrong.
  static result<loader_state> parse(std::string_view json);

  friend bool operator==(const loader_state&, const loader_state&) = default;
};

} // namespace millrace
