// The header of NumPy's array format, versions 1 to 3. Used by the reader and writer of NPZ, and by
// the reader of samples.
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

/// The first bytes of an array that contain every header that is read.
inline constexpr std::uint64_t npy_header_bytes_max = 16 * 1024;

/// Returns the dtype as which NumPy stores this one. For a dtype that NumPy lacks it is unsigned
/// and has the same width; dtypes smaller than a byte are bytes.
dtype numpy_type(dtype type) noexcept;

/// Returns the header for dense little-endian elements of `numpy_type`; a multiple of 64 bytes.
std::string write_npy_header(const tensor_desc& tensor);

/// Reads a header. `text`: the first `npy_header_bytes_max` bytes of the array, or all of them.
/// Errors: `corrupt_data`; `unsupported` naming the element type.
result<npy_header> parse_npy_header(std::string_view text);

} // namespace millrace::storage::archive
