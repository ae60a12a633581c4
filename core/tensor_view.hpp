// A tensor in the caller's memory, dense or strided. Passed to most calls of the public API.
#pragma once

#include <millrace/core/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace millrace {

/// Describes a tensor in the caller's memory without owning it. The memory must outlive the
/// operation.
struct tensor_view {
  tensor_desc desc;
  std::byte* data = nullptr;
  /// The distance in bytes between neighbours along each dimension. Empty means dense, row-major.
  std::vector<std::int64_t> strides_bytes;

  /// Returns a dense view of `elements`.
  template <class T>
  static tensor_view dense(
    std::string name, dtype type, std::vector<std::uint64_t> shape, std::span<T> elements) {
    return {
      {std::move(name), type, std::move(shape)},
      reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(elements.data())),
      {}};
  }
};

/// Checks the description, the strides (rank, reach, no sub-byte dtype), and that `data` is set if
/// there are bytes.
[[nodiscard]] status validate(const tensor_view& view);

} // namespace millrace
