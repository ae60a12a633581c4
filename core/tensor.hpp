// Descriptions of tensors (dtype, shape, name) and of a model's layout, the ordered list of its
// tensors. Used by every room.
#pragma once

#include <millrace/core/inspect.hpp>
#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// The element types of the safetensors format, and complex numbers of 128 bits. Their numbers are
/// stored on disk: append, never renumber.
enum class dtype : std::uint8_t {
  boolean = 0,
  f4 = 1,
  f6_e2m3 = 2,
  f6_e3m2 = 3,
  u8 = 4,
  i8 = 5,
  f8_e5m2 = 6,
  f8_e4m3 = 7,
  f8_e8m0 = 8,
  i16 = 9,
  u16 = 10,
  f16 = 11,
  bf16 = 12,
  i32 = 13,
  u32 = 14,
  f32 = 15,
  c64 = 16,
  f64 = 17,
  i64 = 18,
  u64 = 19,
  c128 = 20,
};
inline constexpr std::uint8_t dtype_count = 21;

/// Returns the safetensors spelling ("BF16", "F8_E4M3"), or "C128".
std::string_view to_string(dtype type) noexcept;
/// Reads what `to_string` returns, or a name that NumPy and PyTorch use ("float32", "bfloat16").
result<dtype> parse_dtype(std::string_view name);
std::uint32_t bits_per_element(dtype type) noexcept;
/// Returns true for dtypes of two floating numbers, the real part and the imaginary part.
bool is_complex(dtype type) noexcept;

inline constexpr std::size_t tensor_name_bytes_max = 1024;
inline constexpr std::size_t tensor_rank_max = 32;

/// Describes a tensor. An empty shape means a scalar; a zero in the shape means no elements.
struct tensor_desc {
  std::string name;
  dtype type = dtype::f32;
  std::vector<std::uint64_t> shape;

  friend bool operator==(const tensor_desc&, const tensor_desc&) = default;
};

/// Returns the bytes of the tensor when dense.
/// Errors: `invalid_argument` when the product overflows or sub-byte elements do not fill whole
///         bytes.
result<std::uint64_t> size_bytes(const tensor_desc& tensor);

/// Returns the bytes of one row along the first dimension; of the whole tensor for a scalar.
result<std::uint64_t> row_bytes(const tensor_desc& tensor);

/// Checks name (UTF-8, 1 to `tensor_name_bytes_max` bytes, no NUL), dtype, rank and size.
[[nodiscard]] status validate(const tensor_desc& tensor);

/// Returns true for well-formed UTF-8 without NUL.
bool is_utf8(std::string_view text) noexcept;

/// Returns dtype and shape as text: "BF16[4096, 1024]".
std::string describe(const tensor_desc& tensor);

/// The tensors of one model, in the order in which they are stored. Names are unique.
struct layout {
  std::vector<tensor_desc> tensors;

  friend bool operator==(const layout&, const layout&) = default;
};

inline constexpr std::size_t layout_tensors_max = 1u << 20;

/// Checks every tensor, the uniqueness of names, and that the sum of bytes fits 63 bits.
[[nodiscard]] status validate(const layout& tensors);

/// Returns the sum of the tensors' bytes. The layout must be valid.
std::uint64_t size_bytes(const layout& tensors);

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, tensor_desc& x) {
  return f(x.name, x.type, x.shape);
}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, layout& x) {
  return f(x.tensors);
}

} // namespace millrace
