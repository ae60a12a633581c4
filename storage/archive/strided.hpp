// Elements that do not lie in C order, or not in our byte order. Used by the readers of NPZ and torch files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace millrace::storage::archive {

/// Where elements lie, in elements.
using strides = std::vector<std::uint64_t>;

strides c_order(const std::vector<std::uint64_t>& shape);
strides fortran_order(const std::vector<std::uint64_t>& shape);

/// True if elements of that shape and those strides lie one after the other in C order.
bool is_dense(const std::vector<std::uint64_t>& shape, const strides& steps);

/// Elements from the first to behind the last that are reached; null when that overflows. 0 for an empty shape.
std::optional<std::uint64_t> reach(const std::vector<std::uint64_t>& shape, const strides& steps);

/// Copies elements [first, first + into.size() / element_bytes) in C order. `from` has all that is reached.
void gather(
  std::span<const std::byte> from, const std::vector<std::uint64_t>& shape, const strides& steps,
  std::uint64_t element_bytes, std::uint64_t first, std::span<std::byte> into);

/// Reverses the bytes of every unit of `unit_bytes`.
void swap_bytes(std::span<std::byte> bytes, std::uint64_t unit_bytes);

} // namespace millrace::storage::archive
