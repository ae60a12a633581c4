// Elements in another order than C, in another byte order, or of the other sign. Used by the
// readers of NPZ and torch files, and of samples.
#pragma once

#include <millrace/core/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace millrace::storage::archive {

/// Returns the bytes of one element; 1 for a dtype smaller than a byte.
std::uint64_t element_bytes(const tensor_desc& tensor) noexcept;

/// Returns the bytes of one number: a complex element has two.
std::uint64_t number_bytes(const tensor_desc& tensor) noexcept;

/// Distances between elements along each dimension, in elements.
using strides = std::vector<std::uint64_t>;

strides c_order(const std::vector<std::uint64_t>& shape);
strides fortran_order(const std::vector<std::uint64_t>& shape);

/// Returns true if elements of this shape and these strides are contiguous in C order.
bool is_dense(const std::vector<std::uint64_t>& shape, const strides& steps);

/// Returns the number of elements from the first to the last one that is reached; null when it
/// overflows. 0 for an empty shape.
std::optional<std::uint64_t> reach(const std::vector<std::uint64_t>& shape, const strides& steps);

/// Copies elements [first, first + into.size() / element_bytes) in C order. `from` contains all
/// elements that are reached.
void gather(
  std::span<const std::byte> from, const std::vector<std::uint64_t>& shape, const strides& steps,
  std::uint64_t element_bytes, std::uint64_t first, std::span<std::byte> into);

/// Reverses the bytes of every unit of `unit_bytes`.
void swap_bytes(std::span<std::byte> bytes, std::uint64_t unit_bytes);

/// Reverses the sign of floating numbers of `unit_bytes`, little-endian: of those at even places,
/// at odd places or of both.
void flip_signs(std::span<std::byte> bytes, std::uint64_t unit_bytes, bool even, bool odd);

} // namespace millrace::storage::archive
