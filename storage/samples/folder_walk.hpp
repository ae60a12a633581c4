// The files of a directory and of all directories in it. Used when samples are opened.
#pragma once

#include <millrace/storage/samples/opening.hpp>
#include <millrace/storage/samples/sample_file.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace millrace::storage::samples {

/// Bounds of a walk. What is beyond is refused.
inline constexpr std::size_t walk_depth_max = 64;
inline constexpr std::size_t walk_files_max = 1u << 27;

struct walked_folder {
  std::vector<named_file> files;    // by their names in it, also those that are left out
  std::vector<std::string> folders; // the first ones, by name
};

/// Lists the files, and opens none that is no regular one. Hidden files and directories, whose
/// names begin with a dot, are skipped. A link counts if it leads to a file in the same directory.
/// Errors:  `invalid_argument` naming a link that leaves the directory or leads to another one, and
///          what is no regular file; those of the system, with the path. If `how` skips files, they
///          are left out instead. `cancelled`.
/// Threads: blocks the caller.
result<walked_folder> walk(const std::string& directory, opening& how);

} // namespace millrace::storage::samples
