// Files of arrays, as NumPy writes them. Used by tests of working sets.
#pragma once

#include <millrace/core/tensor.hpp>
#include <millrace/storage/archive/npy.hpp>

#include <cstddef>
#include <fstream>
#include <span>
#include <string>

namespace millrace::testing {

/// Writes a dense array, and returns the path.
inline std::string write_npy(
  const std::string& path, const tensor_desc& array, std::span<const std::byte> bytes) {
  auto header = storage::archive::write_npy_header(array);
  std::ofstream file{path, std::ios::binary | std::ios::trunc};
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  file.write(
    reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return path;
}

} // namespace millrace::testing
