// The memory for one tensor of a load, or for a part of it. Passed to loads of models and of
// checkpoints.
#pragma once

#include <millrace/core/tensor_view.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace millrace {

/// The memory for one tensor, for some of its rows, or for a box of it. It may be strided.
struct load_target {
  /// The expected name, dtype and shape. With `first_row`, the first dimension is the number of
  /// rows wanted. With `offsets`, the shape is the extent of the box.
  tensor_view into;
  std::optional<std::uint64_t> first_row = {};
  /// The first index of a box in each dimension of the tensor. Empty: no box. A box costs the
  /// provider one op for each of its runs of bytes; with checksums, it reads all digest blocks
  /// (256 KiB) that have a part of the box, each once.
  std::vector<std::uint64_t> offsets = {};
};

} // namespace millrace
