// Tells whether two directories hold the same files. Used by crash tests.
#pragma once

#include <millrace/tests/support/file_contents.hpp>

#include <filesystem>
#include <set>
#include <string>

namespace millrace::testing {

/// Names the first file or directory in which the two differ; empty: they are the same.
inline std::string difference_of_trees(const std::string& left, const std::string& right) {
  namespace fs = std::filesystem;
  std::set<std::string> names;
  for (auto& root : {left, right})
    for (auto& entry : fs::recursive_directory_iterator{root})
      names.insert(entry.path().lexically_relative(root).string());
  for (auto& name : names) {
    auto a = left + "/" + name, b = right + "/" + name;
    if (!fs::exists(a) || !fs::exists(b))
      return name + " is in one of them only";
    if (fs::is_directory(a) != fs::is_directory(b))
      return name + " is of two kinds";
    if (fs::is_regular_file(a) && contents_of(a) != contents_of(b))
      return "the contents of " + name;
  }
  return {};
}

} // namespace millrace::testing
