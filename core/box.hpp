// Boxes of tensors: a first index and an extent for each dimension, and the runs of bytes that they
// are in a dense tensor. Used by loads, at providers and in clients.
#pragma once

#include <millrace/core/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

/// A box of a tensor. Both lists have one number for each dimension.
struct tensor_box {
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint64_t> extents;

  friend bool operator==(const tensor_box&, const tensor_box&) = default;
};

/// Checks that a box lies inside a tensor.
/// Errors: `invalid_argument` naming the tensor and the dimension.
[[nodiscard]] status check_inside(const tensor_box& box, const tensor_desc& tensor);

/// Returns true if the box has no elements. A box without dimensions has one.
bool is_empty(const tensor_box& box) noexcept;

/// Returns the box as text: "[0:4, 2:6]", each dimension without its last number. The sums of
/// offsets and extents must fit 64 bits.
std::string describe(const tensor_box& box);

/// Returns the elements that both boxes have; nothing if there are none. The boxes must have as
/// many dimensions, and sums that fit 64 bits.
std::optional<tensor_box> intersection(const tensor_box& a, const tensor_box& b);

/// Cuts `part`, which lies inside `whole`, out of it. Returns what is left, as boxes that do not
/// overlap: two for each dimension at most.
std::vector<tensor_box> without(const tensor_box& whole, const tensor_box& part);

/// The bytes of a box in a dense, row-major tensor: runs of equal length, in the order of the
/// tensor, which is also that of the box. Runs that touch are one.
class box_runs {
public:
  struct dimension {
    std::uint64_t count;
    std::uint64_t stride_bytes;
  };

  /// `outer`: how often the run is repeated, and at which distances; the slowest dimension first.
  box_runs(std::uint64_t first_byte, std::uint64_t run_bytes, std::vector<dimension> outer);

  std::uint64_t first_byte() const noexcept { return first_byte_; } // of the tensor
  std::uint64_t run_bytes() const noexcept { return run_bytes_; }
  std::uint64_t count() const noexcept { return count_; }
  std::uint64_t size_bytes() const noexcept { return count_ * run_bytes_; }
  /// Returns the distance from the first byte of the first run to the end of the last one.
  std::uint64_t span_bytes() const noexcept { return offset(count_ - 1) + run_bytes_; }

  /// Returns where a run begins, counted from `first_byte`.
  std::uint64_t offset(std::uint64_t run) const noexcept;
  /// Returns the first run that ends after `offset`, which is counted in the same way; `count()` if
  /// there is none.
  std::uint64_t first_ending_after(std::uint64_t offset) const noexcept;

  /// Divides the runs where the gap between two of them is `gap_bytes` or more. The first result
  /// has one run for each group, from its first to its last byte. The second one has the runs of
  /// each group, counted from the group's first byte.
  std::pair<box_runs, box_runs> grouped(std::uint64_t gap_bytes) const;

private:
  std::uint64_t first_byte_;
  std::uint64_t run_bytes_;
  std::uint64_t count_ = 1;
  std::vector<dimension> outer_;
};

/// Returns the runs of a box. A box without bytes is one run without bytes. The tensor must be
/// valid.
/// Errors: those of `check_inside`; `invalid_argument` for a box of elements smaller than a byte
/// whose runs do not begin and end at whole bytes.
result<box_runs> runs_of(const tensor_desc& tensor, const tensor_box& box);

} // namespace millrace
