// Files of any format, each of which is a sample. Opened by `open_samples`.
#pragma once

#include <millrace/storage/samples/folder_walk.hpp>
#include <millrace/storage/samples/opening.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::storage::samples {

/// Opens files as samples, with the fields
/// - `x`: the bytes of the file, u8, varying;
/// - `path`: its name, u8, varying: relative to the directory, or as it was given;
/// - `label`: i64, if `options.labels` says whence. "folders": the number of the first
///   folder in the path, counted by their names, as torchvision's `ImageFolder` has it. Otherwise a
///   CSV file, see `parse_labels`, whose paths are those of the field `path`.
///
/// Cost:    80 bytes and two paths for each file. No descriptor stays open.
/// Errors:  `invalid_argument` naming a file without a label, or a field that is not there; those
///          of `walk`, of `parse_labels` with the file, and of the system.
/// Threads: blocks the caller.
result<std::unique_ptr<sample_reader>> open_folder(
  const std::string& directory, const sample_options& options, opening& how);
result<std::unique_ptr<sample_reader>> open_files(
  const std::vector<std::string>& paths, const sample_options& options, opening& how);

} // namespace millrace::storage::samples
