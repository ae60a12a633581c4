// Samples by a text, such as the path of their file. Used by `set_reader::find`.
// Internal; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/stop_mark.hpp>
#include <millrace/runtime/client/working_set.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Returns whether the samples of a field are texts: bytes in one dimension, which varies.
bool has_texts(const sample_field& field) noexcept;

/// Finds the first sample of each text, in the order of `texts`.
/// Memory:  the sizes of so many samples, and the bytes of those that have the size of a text.
/// Errors:  as `set_reader::find`.
/// Threads: blocks the caller.
result<std::vector<std::uint64_t>> find_samples(
  const set_reader& set, std::size_t field, const std::vector<std::string>& texts, stop_mark& mark,
  std::uint64_t samples_at_once = 1u << 16);

} // namespace millrace::runtime
