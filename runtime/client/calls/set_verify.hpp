// Comparing the samples of a set with their digests. Used by `set_reader::verify`.
// Internal; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/stop_mark.hpp>
#include <millrace/runtime/client/calls/whole_set.hpp>

namespace millrace::runtime {

/// Compares every sample, part after part. A part that its server has lost, or whose connection was
/// lost, is opened again once for some samples, as by reads.
/// Errors:  as `set_reader::verify`.
/// Threads: blocks the caller.
result<set_damage> verify_set(
  const whole_set& whole, stop_mark& mark, const progress_callback& progress);

} // namespace millrace::runtime
