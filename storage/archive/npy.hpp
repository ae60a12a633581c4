// The header of NumPy's array format, versions 1 to 3. Used by NPZ.
#pragma once

#include <millrace/core/tensor.hpp>

#include <string>
#include <string_view>

namespace millrace::storage::archive {

struct npy_header {
  tensor_desc tensor; // without a name
  bool fortran_order = false;
  bool big_endian = false;
  std::uint64_t data_offset = 0;
};

/// Bytes from which every header that is read can be parsed.
inline constexpr std::uint64_t npy_header_bytes_max = 16 * 1024;

/// The dtype as which NumPy keeps one it does not have: unsigned, of the same width; bytes for parts of them.
dtype numpy_type(dtype type) noexcept;

/// The header before dense little-endian elements of what `numpy_type` says; a multiple of 64 bytes.
std::string write_npy_header(const tensor_desc& tensor);

/// `text`: the beginning of the array's bytes, `npy_header_bytes_max` of them or all.
/// Errors: `corrupt_data`; `unsupported` naming the element type.
result<npy_header> parse_npy_header(std::string_view text);

} // namespace millrace::storage::archive
