// Reads whole files. Used by tests that look into what a bucket wrote.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace millrace::testing {

/// Returns the bytes of a file; fewer when it cannot be read. Iterators of a stream take seconds
/// for a pool in builds that are not optimised.
inline std::string contents_of(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  std::string bytes(std::filesystem::file_size(path), '\0');
  file.read(bytes.data(), std::ssize(bytes));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}

} // namespace millrace::testing
