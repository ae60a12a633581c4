// What becomes of files that cannot be opened. Used by the readers of samples.
#pragma once

#include <millrace/storage/samples/sample_file.hpp>
#include <millrace/storage/samples/sample_reader.hpp>

#include <functional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace millrace::storage::samples {

/// The files that are left out, and whether more of them may be.
class opening {
public:
  /// `left_out`: files that are left out already.
  explicit opening(const sample_options& options = {}, std::vector<damaged_file> left_out = {});

  bool leaves_out(const std::string& path) const { return paths_.contains(path); }
  const std::vector<damaged_file>& left_out() const noexcept { return left_out_; }

  /// Errors:  `cancelled` when nobody wants the files any more.
  [[nodiscard]] status go_on() const;

  /// Returns why opening ends here; ok where the file is left out, which only a damaged one is.
  [[nodiscard]] status give_up(const std::string& path, const status& why);

  /// Returns why there is nothing to read: the reason of the first file that is left out;
  /// `otherwise` if none is.
  status nothing_left(status otherwise) const;

private:
  const bool skips_; // leaves out a damaged file, and goes on
  const std::function<bool()> is_stopped_;
  std::vector<damaged_file> left_out_;
  std::unordered_set<std::string> paths_; // of those
};

/// Finds files by their names. Those that are left out are among them, if they are there.
result<std::vector<named_file>> find_files(const std::vector<std::string>& names, opening& how);

inline const std::string& path_of(const std::string& path) { return path; }
inline const std::string& path_of(const sample_file& file) { return file.path; }

/// Opens each of the files, given as paths or as `sample_file`s, by `open(file)`.
/// Errors:  the first one of `open`; where files are left out, the one of the first file when none
///          is left.
template <class File, class Given, class Open>
result<std::vector<File>> open_each(const std::vector<Given>& given, opening& how, Open open) {
  std::vector<File> files;
  for (auto& one : given) {
    if (auto bad = how.go_on(); !bad.ok())
      return fail(bad);
    auto file = open(one);
    if (file)
      files.push_back(std::move(*file));
    else if (auto bad = how.give_up(path_of(one), file.error()); !bad.ok())
      return fail(bad);
  }
  if (files.empty())
    return fail(how.nothing_left({errc::invalid_argument, "no files with samples are given"}));
  return files;
}

} // namespace millrace::storage::samples
