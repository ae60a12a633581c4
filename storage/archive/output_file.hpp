// An output file that appears completely or not at all. Used by archives and by flushing.
#pragma once

#include <millrace/core/status.hpp>

#include <string>
#include <string_view>
#include <utility>

namespace millrace::storage::archive {

/// Names of unfinished files begin with it. The owner of a directory may remove those of dead
/// processes.
inline constexpr std::string_view output_file_prefix = ".millrace-writing-";

/// A file that has another name in the target's directory until it is published. The destructor
/// removes an unpublished file.
class output_file {
public:
  /// Errors: `already_exists` unless `replace`; `invalid_argument` for a target that is no regular
  ///         file.
  static result<output_file> create(const std::string& target, bool replace);

  output_file(output_file&& other) noexcept;
  output_file& operator=(output_file&&) = delete;
  ~output_file();

  /// Where to write.
  const std::string& path() const noexcept { return path_; }

  /// Syncs the file, renames it to the target, syncs the directory.
  [[nodiscard]] status publish();

private:
  output_file(std::string target, std::string path, bool replace)
    : target_(std::move(target)), path_(std::move(path)), replace_(replace) {}

  std::string target_;
  std::string path_; // empty: published or moved from
  bool replace_;
};

/// Writes a small file through `output_file`, in place of an existing one.
[[nodiscard]] status write_whole_file(const std::string& target, std::string_view text);

/// Returns the directory of `path`.
std::string directory_of(const std::string& path);

} // namespace millrace::storage::archive
