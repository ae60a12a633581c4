// A tensor's bytes where the caller keeps them, dense or strided. The currency of the public API.
#pragma once

#include <millrace/core/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace millrace {

/// Describes memory of the caller; owns nothing. The memory must outlive the operation it is given to.
struct tensor_view {
  tensor_desc desc;
  std::byte* data = nullptr;
  /// Distance in bytes between neighbours along each dimension; empty means dense, row-major.
  std::vector<std::int64_t> strides_bytes;

  /// A dense view of `elements`.
  template <class T>
  static tensor_view dense(
    std::string name, dtype type, std::vector<std::uint64_t> shape, std::span<T> elements) {
    return {
      {std::move(name), type, std::move(shape)},
      reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(elements.data())),
      {}};
  }
};

/// Checks description, strides (rank, no sub-byte dtype) and that data is there if there are bytes.
[[nodiscard]] status validate(const tensor_view& view);

} // namespace millrace
