// Index arithmetic over shapes and strides.
#include <millrace/core/assert.hpp>
#include <millrace/storage/archive/strided.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace millrace::storage::archive {

std::uint64_t element_bytes(const tensor_desc& tensor) noexcept {
  return std::max<std::uint64_t>(bits_per_element(tensor.type) / 8, 1);
}

std::uint64_t number_bytes(const tensor_desc& tensor) noexcept {
  return element_bytes(tensor) / (is_complex(tensor.type) ? 2 : 1);
}

strides c_order(const std::vector<std::uint64_t>& shape) {
  strides steps(shape.size(), 1);
  for (auto i = shape.size(); i-- > 1;)
    steps[i - 1] = steps[i] * shape[i];
  return steps;
}

strides fortran_order(const std::vector<std::uint64_t>& shape) {
  strides steps(shape.size(), 1);
  for (std::size_t i = 1; i < shape.size(); ++i)
    steps[i] = steps[i - 1] * shape[i - 1];
  return steps;
}

bool is_dense(const std::vector<std::uint64_t>& shape, const strides& steps) {
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end())
    return true;
  std::uint64_t expected = 1;
  for (auto i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && steps[i] != expected)
      return false;
    expected *= shape[i];
  }
  return true;
}

std::optional<std::uint64_t> reach(const std::vector<std::uint64_t>& shape, const strides& steps) {
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0)
      return 0;
    std::uint64_t along = 0;
    if (
      __builtin_mul_overflow(shape[i] - 1, steps[i], &along) ||
      __builtin_add_overflow(last, along, &last))
      return std::nullopt;
  }
  return last == UINT64_MAX ? std::nullopt : std::optional{last + 1};
}

void gather(
  std::span<const std::byte> from, const std::vector<std::uint64_t>& shape, const strides& steps,
  std::uint64_t element_bytes, std::uint64_t first, std::span<std::byte> into) {
  std::vector<std::uint64_t> at(shape.size());
  std::uint64_t place = 0;
  for (auto i = shape.size(); i-- > 0; first /= shape[i]) {
    at[i] = first % shape[i];
    place += at[i] * steps[i];
  }
  for (std::uint64_t done = 0; done < into.size(); done += element_bytes) {
    MILLRACE_ASSERT((place + 1) * element_bytes <= from.size());
    std::memcpy(into.data() + done, from.data() + place * element_bytes, element_bytes);
    for (auto i = shape.size(); i-- > 0;) {
      place += steps[i];
      if (++at[i] < shape[i])
        break;
      place -= steps[i] * shape[i];
      at[i] = 0;
    }
  }
}

void swap_bytes(std::span<std::byte> bytes, std::uint64_t unit_bytes) {
  for (std::uint64_t at = 0; at + unit_bytes <= bytes.size(); at += unit_bytes)
    std::reverse(
      bytes.begin() + static_cast<std::ptrdiff_t>(at),
      bytes.begin() + static_cast<std::ptrdiff_t>(at + unit_bytes));
}

void flip_signs(std::span<std::byte> bytes, std::uint64_t unit_bytes, bool even, bool odd) {
  constexpr std::byte sign{0x80};
  for (auto last = unit_bytes - 1; last < bytes.size(); last += unit_bytes, std::swap(even, odd))
    if (even)
      bytes[last] ^= sign;
}

} // namespace millrace::storage::archive
