// Arrays in .npy files as samples along their first dimension. Opened by `open_samples`.
#pragma once

#include <millrace/storage/samples/opening.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace millrace::storage::samples {

inline constexpr std::uint64_t npy_block_bytes = 64u << 20;

/// Returns whether a name ends as that of a file that `open_npy` reads.
inline bool is_npy(std::string_view name) noexcept { return name.ends_with(".npy"); }

/// Opens arrays of equal dtype and equal inner shape, as NumPy writes them: in C or Fortran order,
/// of either byte order, format versions 1 to 3. The field has the name "x". A sample of an array
/// with one dimension is a scalar.
///
/// Cost:    no descriptor stays open: every read opens the files that it needs. A C-ordered file is
///          read with one `pread` for each call. A file in Fortran order, in which the elements of
///          one sample lie far apart, is read in blocks of whole samples, as many as fit
///          `block_bytes`, or one. Each block takes one `pread` for each element of a sample, or a
///          single one if the block is the whole file. The reader keeps the last block, so read
///          neighbouring samples one after another.
/// Errors:  `invalid_argument` without a path; naming a path that is no regular file, an array that
///          is a scalar or whose samples have no bytes, or two files of different samples.
///          `corrupt_data` naming a header that is damaged, or a file that is shorter than its
///          header says. `unsupported` naming the element type, such as Python objects, which are
///          pickled. `unsupported_version`; those of the system.
/// `how` says what becomes of damaged files; null: they are errors.
/// Threads: blocks the caller.
result<std::unique_ptr<sample_reader>> open_npy(
  const std::vector<std::string>& paths, std::uint64_t block_bytes = npy_block_bytes,
  opening* how = nullptr);

/// Files whose arrays are one field.
struct npy_field {
  std::string name;
  std::vector<std::string> paths = {};
};

/// Opens arrays as samples of several fields, as `open_npy` opens those of one. Each field has as
/// many files. Those at the same place have as many samples, and are left out together.
/// Cost:    each field of a file in Fortran order has a block of its own.
/// Errors:  `invalid_argument` naming two files of different numbers of samples; as `open_npy`.
/// Threads: blocks the caller.
result<std::unique_ptr<sample_reader>> open_npy_fields(
  const std::vector<npy_field>& fields, opening& how);

} // namespace millrace::storage::samples
