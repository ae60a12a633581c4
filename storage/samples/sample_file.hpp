// Files that hold samples: whether one is still what it was when it was opened. Used by the readers
// of samples.
#pragma once

#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/samples/sample_reader.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace millrace::storage::samples {

/// What tells whether a file is still the one that was opened.
struct file_state {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t modified_s = 0;
  std::int64_t modified_ns = 0;

  friend bool operator==(const file_state&, const file_state&) = default;
};

struct sample_file {
  std::string path; // absolute, without links: the program may change its directory
  file_state state;
};

/// A file by the name that it was given, or that it has in a directory. The ending of the name, not
/// that of the path, says its format: a link may lead to a file of any name.
struct named_file : sample_file {
  std::string name;
};

/// A file that is open for reading, and what it is.
struct opened_file {
  io::file_handle handle;
  file_state state;
};

/// Opens a regular file by a path without links. A FIFO does not block the caller, nor does a
/// terminal become that of the process.
/// Errors:  `invalid_argument` naming what is no regular file; those of the system, for a link too.
result<opened_file> open_to_read(const std::string& path);

/// Finds a file by any of its names.
/// Errors:  as `open_to_read`.
result<sample_file> find_file(const std::string& path);

/// Checks that a file that is open, or that has been read, is still the same one.
/// Errors:  `corrupt_data` naming the file; those of the system.
[[nodiscard]] status check_unchanged(const sample_file& file, const io::file_handle& opened);
[[nodiscard]] status check_unchanged(const sample_file& file);

/// Returns the number of the first sample after a file, whose first one has the number `first`.
/// Errors:  `invalid_argument` naming the file: more samples than 63 bits count.
result<std::uint64_t> sample_after(
  const sample_file& file, std::uint64_t first, std::uint64_t samples);

/// Adds the bytes of a sample that varies, and the gap behind it, to those of other samples.
/// Errors:  `invalid_argument` naming the file: more bytes than 63 bits count.
[[nodiscard]] status add_bytes(
  std::uint64_t& all, std::uint64_t size_bytes, const std::string& path);

/// Returns the file that has a sample. `File::first` is the number of its first one.
template <class File>
const File& file_with(const std::vector<File>& files, std::uint64_t sample) {
  return *std::prev(std::ranges::upper_bound(files, sample, {}, &File::first));
}

/// Returns a digest of what files are, and of what is taken of them: their paths, sizes, times of
/// change and inodes; kind, fields and where labels come from.
std::uint64_t source_of(const std::vector<named_file>& files, const sample_options& options);

} // namespace millrace::storage::samples
