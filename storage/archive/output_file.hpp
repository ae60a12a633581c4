// An output file that appears completely or not at all. Used by archives and by flushing.
#pragma once

#include <millrace/storage/io/file_io.hpp>

#include <string>
#include <string_view>
#include <utility>

namespace millrace::storage::archive {

/// The names of the directories of unfinished files begin with it.
inline constexpr std::string_view output_file_prefix = ".millrace-writing-";

/// A file that lies in a locked directory of its own beside the target until it is published. The
/// destructor removes an unpublished file. What a killed process leaves, the next output file
/// beside it removes, where the file system has locks (`flock`).
class output_file {
public:
  /// Errors: `already_exists` unless `replace`; `invalid_argument` for a target that is no regular
  ///         file; `not_found` naming the missing directory.
  static result<output_file> create(const std::string& target, bool replace);

  output_file(output_file&& other) noexcept;
  output_file& operator=(output_file&&) = delete;
  ~output_file();

  /// Where to write. Other files may be made beside it.
  std::string path() const { return directory_ + "/file"; }

  /// Syncs the file, renames it to the target, syncs the target's directory.
  [[nodiscard]] status publish();

private:
  output_file(std::string target, std::string directory, io::file_handle lock, bool replace)
    : target_(std::move(target)), directory_(std::move(directory)), lock_(std::move(lock)),
      replace_(replace) {}

  std::string target_;
  std::string directory_; // empty: published or moved from
  io::file_handle lock_;  // on the directory
  bool replace_;
};

/// Removes the unfinished files in a directory whose writers have ended.
void remove_unfinished(const std::string& directory);

/// Writes a small file through `output_file`, in place of an existing one.
[[nodiscard]] status write_whole_file(const std::string& target, std::string_view text);

/// Returns the directory of `path`.
std::string directory_of(const std::string& path);

} // namespace millrace::storage::archive
