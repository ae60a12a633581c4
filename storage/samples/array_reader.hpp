// Arrays in NPZ and HDF5 files as fields of samples. Opened by `open_samples`.
#pragma once

#include <millrace/storage/samples/opening.hpp>

namespace millrace::storage::samples {

/// Returns whether a name ends as that of a file that `open_arrays` reads.
bool holds_arrays(std::string_view name) noexcept;

/// Opens files with arrays; the ending of a file's name says its format. The first dimension counts
/// the samples. Each array is a field; a dataset of HDF5 has its path as the name, as
/// "train/images". Scalars are left out. `fields`: the names of the arrays that are taken, in this
/// order; others are not looked at. Empty: all, in the order of the file. Several files have the
/// same fields.
///
/// Cost:    one file at a time is open. Reads in the order of samples continue where the last one
///          has ended; one that goes back in a compressed entry of NPZ begins anew. Arrays of NPZ
///          that do not lie in C order are held in memory while they are read.
/// Errors:  `invalid_argument` naming a field that is not there, arrays of different lengths, and
///          files of different fields; those of the formats, with the file.
/// Threads: blocks the caller. Reads wait for each other.
result<std::unique_ptr<sample_reader>> open_arrays(
  const std::vector<named_file>& given, const std::vector<std::string>& fields, opening& how);

} // namespace millrace::storage::samples
